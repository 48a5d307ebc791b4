"""TLS on the traffic port: the certificate, its replacement, and clients that do not speak it."""

import asyncio
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kvquota_sidecar import tls
from kvquota_sidecar.tls import CertificateError, CertificateFiles
from raw_client import DEADLINE_SECONDS, RawClient
from raw_engine import RawEngine
from sidecar_mounts import Volume
from sidecar_rig import Running, both_ends, chat, eventually, get, on_both_loops, post
from testcluster import certificates

NAMES = ("DNS:localhost", "IP:127.0.0.1")


class Issued:
    """A certificate, its key, and who vouches for it."""

    def __init__(self, folder: Path) -> None:
        made = certificates.make(folder, names=NAMES)
        self.ca, self.certificate, self.key = made.ca, made.server.read_bytes(), made.server_key.read_bytes()

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)


def pair(certificate: bytes, key: bytes) -> dict[str, bytes]:
    """The files of a Secret of type kubernetes.io/tls."""
    return {"tls.crt": certificate, "tls.key": key}


def mounted(folder: Path, issued: Issued) -> Volume:
    return Volume(folder / "tls", pair(issued.certificate, issued.key))


def files_of(volume: Volume) -> CertificateFiles:
    return CertificateFiles(volume.folder / "tls.crt", volume.folder / "tls.key")


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    return Issued(tmp_path_factory.mktemp("issued"))


@pytest.fixture(scope="module")
def renewed(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    return Issued(tmp_path_factory.mktemp("renewed"))


@asynccontextmanager
async def secured(volume: Volume) -> AsyncIterator[tuple[Running, RawEngine]]:
    async with both_ends(tls=files_of(volume), files_seconds=0.05) as (running, engine):
        yield running, engine


async def connect(running: Running, trusting: ssl.SSLContext, host: str = "127.0.0.1") -> RawClient:
    port = running.sidecar.traffic_address.port
    async with asyncio.timeout(DEADLINE_SECONDS):
        return RawClient(*await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname=host))


def serial(client: RawClient) -> object:
    """Of the certificate that the client was shown."""
    return client.writer.get_extra_info("peercert")["serialNumber"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@on_both_loops
async def test_requests_and_streams_pass_over_tls_by_name_and_by_address(
    tmp_path: Path, issued: Issued, host: str
) -> None:
    async with secured(mounted(tmp_path, issued)) as (running, engine):
        async with await connect(running, issued.trusting(), host) as client:
            for _ in range(2):
                client.send(post(chat()))
                (await engine.next()).answer(b'{"a":1}')
                assert (await client.answer()).json() == {"a": 1}
            client.send(post(chat(stream=True)))
            upstream = await engine.next()
            upstream.begin_stream()
            upstream.frame("x" * 100_000)
            upstream.end_stream()
            got = await client.answer()
            assert (got.complete, len(got.body) > 100_000) == (True, True)
            assert client.writer.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
        await running.idle()
    assert running.events("serving")[0]["tls"] == str(tmp_path / "tls" / "tls.crt")


@on_both_loops
async def test_a_client_that_leaves_or_says_goodbye_ends_its_request(tmp_path: Path, issued: Issued) -> None:
    async with secured(mounted(tmp_path, issued)) as (running, engine):
        for leave in (RawClient.reset, lambda each: each.writer.close()):
            client = await connect(running, issued.trusting())
            client.send(post(chat()))
            upstream = await engine.next()
            leave(client)
            await upstream.gone()
            await running.idle()


@on_both_loops
async def test_a_refused_body_is_answered_over_tls(tmp_path: Path, issued: Issued) -> None:
    async with (
        secured(mounted(tmp_path, issued)) as (running, _),
        await connect(running, issued.trusting()) as client,
    ):
        client.send(post(b"x" * (9 * 1024 * 1024)))
        got = await client.answer()
    assert (got.status, got.code) == (413, "request_too_large")


@on_both_loops
async def test_a_client_without_tls_is_closed_and_never_answered(tmp_path: Path, issued: Issued) -> None:
    async with secured(mounted(tmp_path, issued)) as (running, _):
        async with await running.connect() as client:
            client.send(get("/health"))
            assert b"HTTP" not in await client.eof()
        async with await running.connect_admin() as operator:
            assert (await operator.ask(get("/healthz"))).status == 200


@on_both_loops
async def test_a_client_that_does_not_finish_its_handshake_is_closed(
    tmp_path: Path, issued: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_SECONDS", 0.2)
    async with secured(mounted(tmp_path, issued)) as (running, _), await running.connect() as client:
        assert await client.eof() == b""


@on_both_loops
async def test_nothing_below_tls_1_2_is_spoken(tmp_path: Path, issued: Issued) -> None:
    old = issued.trusting()
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="deprecated"):
        old.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="deprecated"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with secured(mounted(tmp_path, issued)) as (running, _):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await connect(running, old)


@on_both_loops
async def test_who_speaks_plainly_to_the_port_is_counted_and_told_of_once_in_a_while(
    tmp_path: Path, issued: Issued
) -> None:
    async with secured(mounted(tmp_path, issued)) as (running, _):
        for _ in range(5):
            async with await running.connect() as client:
                client.send(get("/health"))
                assert await client.eof() == b""
        with pytest.raises(ssl.SSLError):
            await connect(running, ssl.create_default_context())
        certificate = running.sidecar._certificate
        assert certificate is not None
        assert certificate.failed["plaintext"] == 5
        await eventually("it is told", lambda: running.events("handshakes_failed") != [])
        async with await running.connect() as client:
            client.send(get("/health"))
            assert await client.eof() == b""
        await asyncio.sleep(0.2)
        assert len(running.events("handshakes_failed")) == 1
        assert running.events("handshakes_failed")[0]["plaintext"] in range(1, 6)
        assert certificate.news(running.sidecar._clock() + tls.NEWS_SECONDS) == dict(certificate.failed)


@on_both_loops
async def test_a_replaced_certificate_is_shown_to_the_next_client_and_cuts_nobody_off(
    tmp_path: Path, issued: Issued, renewed: Issued
) -> None:
    volume = mounted(tmp_path, issued)
    async with secured(volume) as (running, engine), await connect(running, issued.trusting()) as before:
        client = await connect(running, issued.trusting())
        shown = serial(client)
        await client.close()
        volume.write(pair(renewed.certificate, renewed.key))
        files = running.sidecar._files
        await eventually("it was seen", lambda: files._seen[files_of(volume).key] == renewed.key)
        async with await connect(running, renewed.trusting()) as after:
            assert serial(after) != shown
        with pytest.raises(ssl.SSLError):
            await connect(running, issued.trusting())
        before.send(post(chat()))
        (await engine.next()).answer(b"{}")
        assert (await before.answer()).status == 200


@on_both_loops
async def test_a_key_that_does_not_belong_to_the_certificate_is_named_and_the_last_good_pair_stays(
    tmp_path: Path, issued: Issued, renewed: Issued
) -> None:
    volume = mounted(tmp_path, issued)
    async with secured(volume) as (running, _):
        volume.write(pair(renewed.certificate, issued.key))
        await eventually("it is named", lambda: running.events("rejected") != [])
        assert running.events("rejected")[0]["reason"] == "InvalidCertificate"
        assert str(files_of(volume).certificate) in running.events("rejected")[0]["message"]
        await (await connect(running, issued.trusting())).close()
        volume.write(pair(renewed.certificate, renewed.key))
        files = running.sidecar._files
        await eventually("it is healed", lambda: files._seen[files_of(volume).key] == renewed.key)
        await (await connect(running, renewed.trusting())).close()


# What cannot be used from the start.


def encrypted(issued: Issued, folder: Path) -> bytes:
    (folder / "plain.key").write_bytes(issued.key)
    subprocess.run(
        [
            "openssl",
            "pkey",
            "-aes256",
            "-passout",
            "pass:x",
            "-in",
            folder / "plain.key",
            "-out",
            folder / "secret.key",
        ],
        check=True,
    )
    return (folder / "secret.key").read_bytes()


@pytest.mark.parametrize("what", ["nothing", "no PEM", "a key with a passphrase"])
def test_files_that_cannot_be_used_are_named(tmp_path: Path, issued: Issued, what: str) -> None:
    files = CertificateFiles(tmp_path / "tls.crt", tmp_path / "tls.key")
    keys = {"nothing": b"", "no PEM": b"no key", "a key with a passphrase": encrypted(issued, tmp_path)}
    if what != "nothing":
        files.certificate.write_bytes(issued.certificate)
        files.key.write_bytes(keys[what])
    with pytest.raises(CertificateError) as caught:
        files.load()
    assert str(files.certificate) in str(caught.value)
    assert str(files.key) in str(caught.value)
    assert ("passphrase" in str(caught.value)) == (what == "a key with a passphrase")


def test_a_program_without_its_certificate_says_so_in_one_sentence_and_ends_with_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        ports = [f"127.0.0.1:{free.getsockname()[1]}", "127.0.0.1:0"]
    flags = ["--tls-cert", str(tmp_path / "tls.crt"), "--tls-key", str(tmp_path / "tls.key")]
    argv = [sys.executable, "-m", "kvquota_sidecar", "--listen", ports[0], "--admin", ports[1], *flags]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert str(tmp_path / "tls.crt") in done.stderr
    assert (len(done.stderr.splitlines()), json.dumps(done.stdout)) == (1, '""')
