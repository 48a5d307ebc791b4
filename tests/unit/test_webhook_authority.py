"""The webhook's own certificates: who signs, for how long, and what is believed meanwhile."""

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from kvquota_operator.adapters.api import Api
from kvquota_operator.adapters.authority import (
    Authority,
    Lifetimes,
    Signed,
    is_due,
    next_authority,
    read_authority,
    sign,
)
from kvquota_operator.adapters.certificates import FolderCertificates, OwnCertificates, load, server_context
from kvquota_operator.ports import ConflictError, UnreachableError
from kvquota_operator.webhook_settings import ServiceName

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
LIFETIMES = Lifetimes(authority=timedelta(days=300), certificate=timedelta(days=30))
SERVICE = "kvquota-webhook.kvquota-system.svc"


def first() -> Authority:
    return next_authority(None, "kvquota-webhook", NOW, LIFETIMES)


@pytest.mark.parametrize(
    ("later", "due"),
    [
        pytest.param(timedelta(days=199), False, id="with more than a third of its time left"),
        pytest.param(timedelta(days=201), True, id="in its last third"),
        pytest.param(timedelta(days=400), True, id="after its end"),
    ],
)
def test_when_an_authority_is_to_be_followed(later: timedelta, due: bool) -> None:
    assert is_due(first().newest, NOW + later) is due


def test_a_successor_has_those_behind_it_that_are_still_good() -> None:
    old = first()
    second = next_authority(old, "kvquota-webhook", NOW + timedelta(days=201), LIFETIMES)
    third = next_authority(second, "kvquota-webhook", NOW + timedelta(days=402), LIFETIMES)
    bundles = [x509.load_pem_x509_certificates(each.bundle) for each in (second, third)]
    assert bundles[0] == [second.newest, old.newest]
    assert bundles[1] == [third.newest, second.newest]


def of_another_kind() -> tuple[bytes, bytes]:
    """An authority with an RSA key, as a person makes one."""
    key, name = rsa.generate_private_key(65_537, 2048), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "own")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + timedelta(days=1))
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), key.private_bytes(*form)


@pytest.mark.parametrize(
    ("bundle", "key"),
    [
        pytest.param(b"", b"", id="nothing"),
        pytest.param(b"no certificate", first().key, id="no certificate"),
        pytest.param(first().bundle, b"no key", id="no key"),
        pytest.param(first().bundle, first().key, id="the key of another"),
        pytest.param(*of_another_kind(), id="a key of a kind that this program does not make"),
    ],
)
def test_what_cannot_be_used_counts_as_not_there(bundle: bytes, key: bytes) -> None:
    assert read_authority(bundle, key) is None


def test_what_was_made_can_be_read_back() -> None:
    made = first()
    assert read_authority(made.bundle, made.key) == made


@pytest.mark.parametrize(
    ("believed", "name", "outcome"),
    [
        pytest.param("own", SERVICE, "shown", id="by its Service"),
        pytest.param("own", "127.0.0.1", "shown", id="by its address"),
        pytest.param("own", "another.kvquota-system.svc", "CERTIFICATE_VERIFY_FAILED", id="not by another name"),
        pytest.param("successor", SERVICE, "shown", id="by who has the successor's bundle"),
        pytest.param("another", SERVICE, "CERTIFICATE_VERIFY_FAILED", id="not by who has another authority's"),
    ],
)
async def test_who_believes_a_certificate(believed: str, name: str, outcome: str) -> None:
    now = datetime.now(UTC)
    authority = next_authority(None, "kvquota-webhook", now, LIFETIMES)
    bundles = {
        "own": authority,
        "successor": next_authority(authority, "kvquota-webhook", now, LIFETIMES),
        "another": next_authority(None, "kvquota-webhook", now, LIFETIMES),
    }
    context = server_context()
    load(context, sign(authority, [SERVICE, "127.0.0.1"], now, LIFETIMES))
    assert outcome in await _tried(context, bundles[believed].bundle, name)


async def _tried(context: ssl.SSLContext, bundle: bytes, name: str) -> str:
    """What a client that believes `bundle` makes of a server at `name`."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        trusting = ssl.create_default_context(cadata=bundle.decode())
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname=name)
        except ssl.SSLCertVerificationError as error:
            return str(error)
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
        return "shown"


class Stored:
    """The Secret and the configuration, as an API server has them. `down`: it does not answer."""

    def __init__(self) -> None:
        self.secret: dict[str, Any] = {"metadata": {"resourceVersion": "1"}}
        self.bundle = ""
        self.down = False

    async def get(self, path: str) -> dict[str, Any]:
        if self.down:
            raise UnreachableError("nobody answers")
        if path.endswith("/secrets/webhook"):
            await asyncio.sleep(0)  # so that two replicas read the same version
            return self.secret
        config = {"caBundle": self.bundle} if self.bundle else {}
        return {"metadata": {"name": "home-webhook"}, "webhooks": [{"name": "inject", "clientConfig": config}]}

    async def merge(self, _: str, body: dict[str, Any]) -> None:
        version = self.secret["metadata"]["resourceVersion"]
        if body["metadata"]["resourceVersion"] != version:
            raise ConflictError("409")
        self.secret = {"metadata": {"resourceVersion": str(int(version) + 1)}, "data": body["data"]}

    async def apply(self, _: str, body: dict[str, Any]) -> None:
        [hook] = body["webhooks"]
        self.bundle = hook["clientConfig"]["caBundle"]

    @property
    def authorities(self) -> list[x509.Certificate]:
        return x509.load_pem_x509_certificates(base64.b64decode(self.bundle))


@dataclass
class Replica:
    """An operator's keeping of its certificates."""

    stored: Stored
    clock: "Clock"
    context: ssl.SSLContext = field(default_factory=server_context)

    @contextlib.asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        ready, service = asyncio.Event(), ServiceName("home", "webhook")
        own = OwnCertificates(cast("Api", self.stored), self.clock, service, lifetimes=LIFETIMES)
        task = asyncio.create_task(own.keep(self.context, ready))
        try:
            await asyncio.wait_for(ready.wait(), 10)
            yield
        finally:
            task.cancel()

    async def is_believed(self) -> bool:
        """By the API server, with what it was told."""
        return await _tried(self.context, base64.b64decode(self.stored.bundle), "webhook.home.svc") == "shown"


@dataclass
class Clock:
    """Of real time, so that what is made can be used, or ahead of it."""

    ahead: timedelta = timedelta()

    def monotonic(self) -> float:
        return 0.0

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_SECONDS", "SPREAD_SECONDS", "FIRST_RETRY_SECONDS"):
        monkeypatch.setattr(f"kvquota_operator.adapters.certificates.{name}", 0.01)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("quick")
async def test_an_authority_is_followed_while_the_process_runs() -> None:
    replica = Replica(Stored(), Clock(ahead=timedelta(days=-201)))
    async with replica.keeping():
        [first] = replica.stored.authorities
        replica.clock.ahead = timedelta()
        await _until(lambda: len(replica.stored.authorities) == 2)
        assert replica.stored.authorities[1] == first
        async with asyncio.timeout(10):
            await _until_shown(replica.context, base64.b64decode(replica.stored.bundle), "webhook.home.svc")


@pytest.mark.usefixtures("quick")
async def test_it_is_known_when_the_own_certificate_ends() -> None:
    clock, ready = Clock(), asyncio.Event()
    own = OwnCertificates(cast("Api", Stored()), clock, ServiceName("home", "webhook"), lifetimes=LIFETIMES)
    before = own.until
    keeping = asyncio.create_task(own.keep(server_context(), ready))
    await asyncio.wait_for(ready.wait(), 10)
    keeping.cancel()
    assert before is None
    assert own.until is not None
    assert abs(own.until - clock.now() - LIFETIMES.certificate) < timedelta(minutes=1)


@pytest.mark.usefixtures("quick")
async def test_replicas_that_start_together_have_one_authority() -> None:
    stored = Stored()
    one, other = Replica(stored, Clock()), Replica(stored, Clock())
    async with one.keeping(), other.keeping():
        await _until(lambda: len(stored.authorities) == 1)
        assert [await each.is_believed() for each in (one, other)] == [True, True]


@pytest.mark.usefixtures("quick")
async def test_a_bundle_that_somebody_takes_out_is_put_back() -> None:
    replica = Replica(Stored(), Clock())
    async with replica.keeping():
        before, replica.stored.bundle = replica.stored.bundle, ""
        await _until(lambda: replica.stored.bundle == before)


@pytest.mark.usefixtures("quick")
async def test_what_cannot_be_kept_is_said_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    replica = Replica(Stored(), Clock())
    async with replica.keeping():
        replica.stored.down = True
        await _until(lambda: any("cannot be kept: nobody answers" in each for each in caplog.messages))
        assert await replica.is_believed()
        replica.stored.down, replica.stored.bundle = False, ""
        await _until(lambda: replica.stored.bundle != "")


async def _until_shown(context: ssl.SSLContext, bundle: bytes, name: str = SERVICE) -> None:
    while await _tried(context, bundle, name) != "shown":  # noqa: ASYNC110 - nobody is told of a new certificate
        await asyncio.sleep(0.02)


WAY_OUT = (
    "put tls.crt and tls.key there, a pair in PEM, or leave --webhook-certificates out to have own ones made; waiting"
    " for the pair"
)


async def test_a_folder_is_read_again_when_its_certificate_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kvquota_operator.adapters.certificates.FOLDER_SECONDS", 0.02)
    now, context, ready = datetime.now(UTC), server_context(), asyncio.Event()
    certificates = FolderCertificates(tmp_path)
    keeping = asyncio.create_task(certificates.keep(context, ready))
    try:
        await asyncio.sleep(0.1)
        assert not ready.is_set()
        for lifetime in (timedelta(days=30), timedelta(days=60)):
            authority = next_authority(None, "webhook", now, LIFETIMES)
            signed = sign(authority, [SERVICE], now, Lifetimes(certificate=lifetime))
            ends = (now + lifetime).replace(microsecond=0)
            (tmp_path / "tls.key").write_bytes(signed.key)
            (tmp_path / "tls.crt").write_bytes(signed.certificate)
            async with asyncio.timeout(10):
                await ready.wait()
                await _until_shown(context, authority.bundle)
            assert certificates.until == ends
    finally:
        keeping.cancel()
    missing = f"[Errno 2] No such file or directory: '{tmp_path}/tls.crt'"
    assert caplog.messages[0] == f"the webhook's certificate in {tmp_path} cannot be used ({missing}): {WAY_OUT}"


async def test_a_pair_of_which_one_half_is_new_takes_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As it is read in the moment in which the kubelet puts another folder in place of the one before."""
    monkeypatch.setattr("kvquota_operator.adapters.certificates.FOLDER_SECONDS", 0.02)
    now, context, ready = datetime.now(UTC), server_context(), asyncio.Event()
    authorities = [next_authority(None, "webhook", now, LIFETIMES) for _ in range(2)]
    old, new = (sign(authority, [SERVICE], now, LIFETIMES) for authority in authorities)
    (tmp_path / "tls.crt").write_bytes(old.certificate)
    (tmp_path / "tls.key").write_bytes(old.key)
    keeping = asyncio.create_task(FolderCertificates(tmp_path).keep(context, ready))
    try:
        await asyncio.wait_for(ready.wait(), 10)
        (tmp_path / "tls.crt").write_bytes(new.certificate)
        await _until(lambda: any("cannot be used" in each for each in caplog.messages))
        assert await _tried(context, authorities[0].bundle, SERVICE) == "shown"
        (tmp_path / "tls.key").write_bytes(new.key)
        await asyncio.wait_for(_until_shown(context, authorities[1].bundle), 10)
    finally:
        keeping.cancel()


def encrypted() -> Signed:
    """A certificate, and its key behind a passphrase."""
    now = datetime.now(UTC)
    signed = sign(next_authority(None, "webhook", now, LIFETIMES), [SERVICE], now, LIFETIMES)
    key = serialization.load_pem_private_key(signed.key, None)
    hidden = serialization.BestAvailableEncryption(b"a passphrase")
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL)
    return Signed(signed.certificate, key.private_bytes(*form, hidden))


@pytest.mark.parametrize(
    "found",
    [pytest.param(Signed(b"junk", b"junk"), id="junk"), pytest.param(encrypted(), id="a key behind a passphrase")],
)
async def test_what_is_no_certificate_is_said_once_with_what_to_do(
    found: Signed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kvquota_operator.adapters.certificates.FOLDER_SECONDS", 0.02)
    (tmp_path / "tls.crt").write_bytes(found.certificate)
    (tmp_path / "tls.key").write_bytes(found.key)
    ready = asyncio.Event()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(FolderCertificates(tmp_path).keep(server_context(), ready), 0.2)
    [message] = caplog.messages
    assert message.startswith(f"the webhook's certificate in {tmp_path} cannot be used ([SSL")
    assert message.endswith(f"): {WAY_OUT}")
    assert not ready.is_set()
