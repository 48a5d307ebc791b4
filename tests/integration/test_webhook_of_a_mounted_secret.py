"""The webhook with certificates of somebody else, in a folder as the kubelet mounts and renews a Secret."""

import asyncio
import base64
import json
import shutil
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509

from kvquota_operator.adapters.authority import Authority, Lifetimes, Signed, next_authority, sign
from operator_replicas import Replica, replica
from operator_world import Object, World, until, world_in
from testcluster.apiserver import ApiServer
from testcluster.processes import free_port

pytestmark = pytest.mark.apiserver

NAMESPACE = "mounted-secret"
HOST = "127.0.0.1"
EXPIRY = "kvquota_operator_webhook_certificate_expiry_seconds"


@pytest.fixture
async def world(server: ApiServer) -> AsyncIterator[World]:
    async with world_in(server, NAMESPACE, network=210) as world:
        yield world


class Mounted:
    """A mounted Secret: `..data` leads to a folder with a name of its own, and another takes its place at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._renewals = 0
        for name in ("tls.crt", "tls.key"):
            (folder / name).symlink_to(Path("..data") / name)

    def renew(self, pair: Signed) -> None:
        self._renewals += 1
        new, data, link = (self.folder / name for name in (f"..{self._renewals}", "..data", "..data_tmp"))
        before = data.resolve()
        new.mkdir()
        (new / "tls.crt").write_bytes(pair.certificate)
        (new / "tls.key").write_bytes(pair.key)
        link.symlink_to(new.name)
        link.rename(data)
        if before != data:
            shutil.rmtree(before)


def signed(authority: Authority, now: datetime, *, days: int) -> Signed:
    """A pair that ends so many days from `now`."""
    return sign(authority, [HOST], now, Lifetimes(certificate=timedelta(days=days)))


def ended(authority: Authority, now: datetime) -> Signed:
    """A pair that ended a minute ago."""
    return sign(authority, [HOST], now, Lifetimes(certificate=timedelta(minutes=-1)))


def configuration(port: int, authority: Authority) -> Object:
    """What cert-manager makes of the chart's: with the bundle of the authority that signs."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": NAMESPACE},
        "webhooks": [
            {
                "name": "inject.kvquota.dev",
                "clientConfig": {
                    "url": f"https://{HOST}:{port}/inject",
                    "caBundle": base64.b64encode(authority.bundle).decode(),
                },
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
                "objectSelector": {"matchLabels": {"kvquota.dev/inject": "true"}},
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }


def asking_pod() -> Object:
    engine = {"name": "vllm", "image": "vllm", "command": ["vllm", "serve", "m"], "args": ["--port", "8000"]}
    labels = {"app": "llama", "kvquota.dev/inject": "true"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "llama-", "labels": labels},
        "spec": {"containers": [engine]},
    }


async def create(world: World) -> str:
    """The sidecar of a pod that asks for one, which is created."""
    stored = await world.kubectl("create", "-f", "-", "-o", "json", input=json.dumps(asking_pod()))
    [sidecar] = json.loads(stored)["spec"]["initContainers"]
    return str(sidecar["name"])


async def believes(port: int, authority: Authority) -> str:
    """What a client that believes the authority makes of the webhook: empty where it believes it.

    The API server keeps a connection, and would not look again.
    """
    trusting = ssl.create_default_context(cadata=authority.bundle.decode())
    try:
        _, writer = await asyncio.open_connection(HOST, port, ssl=trusting)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    writer.close()
    return ""


async def shown(port: int) -> datetime | None:
    """When the certificate ends that the webhook shows; None where it shows none."""
    try:
        pem = await asyncio.to_thread(ssl.get_server_certificate, (HOST, port), timeout=5)
    except OSError:
        return None
    return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc


async def readyz(running: Replica) -> tuple[int, str]:
    url = f"http://{running.address.host}:{running.address.port}/readyz"
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()
    except aiohttp.ClientConnectionError:
        return 0, ""


def ends_of(pair: Signed) -> datetime:
    return x509.load_pem_x509_certificate(pair.certificate).not_valid_after_utc


async def until_shown(port: int, pair: Signed) -> None:
    await until(lambda: shown(port), lambda each: each == ends_of(pair), what="the renewed certificate is shown")


async def test_a_renewed_pair_is_shown_without_a_restart_and_one_that_ended_is_told(
    world: World, tmp_path: Path
) -> None:
    now, port = datetime.now(UTC), free_port()
    authority = next_authority(None, "an issuer", now, Lifetimes())
    pairs = [signed(authority, now, days=1), signed(authority, now, days=90), signed(authority, now, days=91)]
    late = ended(authority, now)
    secret = tmp_path / "secret"
    secret.mkdir()
    mounted = Mounted(secret)
    mounted.renew(pairs[0])
    await world.add_pool()
    await world.apply(configuration(port, authority))
    kubeconfig = tmp_path / "kubeconfig"
    shutil.copy(world.server.kubeconfig, kubeconfig)
    flags = (
        "--no-leader-elect",
        f"--webhook-listen={HOST}:{port}",
        "--webhook-service=home/webhook",
        f"--webhook-certificates={secret}",
        "--sidecar-image=kvquota/sidecar:test",
    )
    try:
        with replica("mounted", kubeconfig, world.namespace, *flags) as running:
            await until(running.ready, lambda each: each == 200, what="readyz")
            assert (await shown(port), await create(world)) == (ends_of(pairs[0]), "kvquota")
            mounted.renew(pairs[1])
            await until_shown(port, pairs[1])
            assert (await believes(port, authority), await create(world)) == ("", "kvquota")
            mounted.renew(late)
            await until_shown(port, late)
            assert await believes(port, authority) == "certificate has expired"
            status, text = await readyz(running)
            ending = f"the webhook's certificate ended at {ends_of(late).isoformat()}: "
            assert (status, text[: len(ending)]) == (503, ending)
            assert (await running.metrics())[EXPIRY] == ends_of(late).timestamp()
            mounted.renew(pairs[2])
            await until_shown(port, pairs[2])
            assert (await readyz(running), await believes(port, authority)) == ((200, "ok\n"), "")
            assert await create(world) == "kvquota"
            assert running.process.poll() is None
    finally:
        await world.kubectl("delete", "mutatingwebhookconfiguration", NAMESPACE)
