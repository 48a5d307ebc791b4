"""From manifests to the answer that a client gets: tokens and a trusted header, through operator and sidecar."""

import io
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from identities import AUDIENCE, ISSUER, PEER_SECRET, claims, jwks, public_jwk, token
from kvquota_cli.embedded.identity import new_secret, new_uid
from kvquota_cli.embedded.objects import Objects
from kvquota_cli.embedded.session import Session
from kvquota_cli.manifests.documents import read_documents
from kvquota_cli.manifests.last_good import InForce
from kvquota_cli.manifests.places import ObjectKey
from kvquota_operator.reconcile.observed import PoolKey
from kvquota_sidecar.proxy.engine_side import EngineAddress
from kvquota_sidecar.settings import Bind, Settings
from raw_client import Got, RawClient
from raw_engine import RawEngine
from sidecar_rig import chat, eventually

POOL = PoolKey("shop", "pool")
ANYWHERE = Bind("127.0.0.1", 0)
PROOF = f"x-kvquota-peer-secret: {PEER_SECRET}"
KEYS = (public_jwk("P-256", 0, kid="k0"), public_jwk("P-256", 1, kid="k1"))


def document(kind: str, name: str, **content: Any) -> dict[str, Any]:
    version = "v1" if kind in ("Secret", "ConfigMap") else "kvquota.dev/v1alpha1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "shop"}, **content}


def manifests(key_set: str, **values: str) -> str:
    """A pool that takes tokens and a trusted header, and quotas of the tenants in `values` with their header values."""
    jwt = {"issuer": ISSUER, "audience": AUDIENCE, "keysRef": {"configMap": {"name": "jwks", "key": "set"}}}
    header = {"name": "X-Team", "sharedSecretRef": {"name": "gateway", "key": "secret"}}
    pool = {
        "selector": {"matchLabels": {"app": "x"}},
        "model": {"name": "tiny", "config": {"preset": "llama-3.2-1b"}, "maxModelLen": 4096},
        "engine": {"type": "vLLM"},
        "gpu": {"memory": "24Gi"},
        "sidecar": {"identity": {"jwt": jwt, "trustedHeader": header}},
    }
    objects = [
        document("ModelPool", "pool", spec=pool),
        document("Secret", "gateway", type="kvquota.dev/api-key", stringData={"secret": PEER_SECRET}),
        document("ConfigMap", "jwks", data={"set": key_set}),
    ]
    for tenant, value in values.items():
        spec = {"tenant": tenant, "modelPoolRef": {"name": "pool"}, "identity": {"headerValue": value}}
        objects.append(document("TenantQuota", tenant, spec=spec))
    return "\n---\n".join(map(json.dumps, objects))


@dataclass(slots=True)
class Served:
    """`kvquota serve` within the test, before a raw engine."""

    objects: Objects
    session: Session
    engine: RawEngine

    def edit(self, text: str) -> None:
        self.objects.take(InForce(read_documents(text, "all.yaml")), datetime.now(UTC))
        self.session.touch()

    def condition(self, kind: str, name: str, asked: str) -> tuple[str, str, str]:
        stored = self.objects.find(ObjectKey(kind, "shop", name))
        found = [each for each in (stored.status if stored else {}).get("conditions", ()) if each["type"] == asked]
        return next(((each["status"], each["reason"], each["message"]) for each in found), ("", "", ""))

    async def until(self, kind: str, name: str, asked: str, holds: Callable[[tuple[str, str, str]], bool]) -> None:
        await eventually(f"{asked} of {kind} {name}", lambda: holds(self.condition(kind, name, asked)))

    async def ask(self, *headers: str, passes: bool) -> Got:
        body = chat()
        lines = ["POST /v1/chat/completions HTTP/1.1", "Host: a", *headers, f"Content-Length: {len(body)}", "", ""]
        address = self.session.sidecar.traffic_address
        async with await RawClient.open(address.host, address.port) as client:
            client.send("\r\n".join(lines).encode() + body)
            if passes:
                (await self.engine.next()).answer(b"{}")
            return await client.answer()


@asynccontextmanager
async def served(text: str) -> AsyncIterator[Served]:
    objects = Objects("shop", new_uid)
    objects.take(InForce(read_documents(text, "all.yaml")), datetime.now(UTC))
    async with RawEngine() as engine:
        settings = Settings(
            listen=ANYWHERE,
            admin=ANYWHERE,
            engine=EngineAddress(*engine.address),
            lame_duck_seconds=0.0,
            drain_seconds=0.0,
            settle_seconds=0.0,
        )
        session = Session(
            objects, POOL, settings, new_secret(), tell=lambda _: None, log=io.StringIO(), sync_seconds=0.05
        )
        async with session:
            await eventually("a config is in force", session.configured.is_set)
            yield Served(objects, session, engine)


def bearer(number: int, **said: Any) -> str:
    return f"Authorization: Bearer {token(claims(exp=time.time() + 3600, **said), number=number)}"


async def passes(here: Served, *headers: str) -> None:
    assert (await here.ask(*headers, passes=True)).status == 200


async def is_refused(here: Served, status: int, *headers: str) -> None:
    assert (await here.ask(*headers, passes=False)).status == status


async def test_tokens_follow_the_set_of_keys_and_a_bad_set_changes_nothing() -> None:
    quotas = {"search": "search", "batch": "the batch"}
    async with served(manifests(jwks(KEYS[0]), **quotas)) as here:
        await passes(here, bearer(0))
        await is_refused(here, 401, bearer(1))
        await is_refused(here, 401, bearer(0, tenant="nobody"))
        here.edit(manifests('{"keys": "none"}', **quotas))
        await here.until("ModelPool", "pool", "PodsGoverned", lambda now: now[1] == "JWTKeysInvalid")
        assert "The keys that were read last stay in force" in here.condition("ModelPool", "pool", "PodsGoverned")[2]
        await passes(here, bearer(0))
        here.edit(manifests(jwks(KEYS[1]), **quotas))
        await here.until("ModelPool", "pool", "PodsGoverned", lambda now: now[0] == "True")
        await passes(here, bearer(1))
        await is_refused(here, 401, bearer(0))


async def test_the_trusted_header_follows_the_quotas() -> None:
    async with served(manifests(jwks(KEYS[0]), search="search", batch="the batch")) as here:
        await passes(here, PROOF, "X-Team: the batch")
        await passes(here, PROOF, "X-Team: search", bearer(0))
        await is_refused(here, 400, PROOF, "X-Team: the batch", bearer(0))
        await is_refused(here, 401, "X-Team: the batch")
        here.edit(manifests(jwks(KEYS[0]), search="one", batch="one"))
        await here.until("TenantQuota", "search", "Ready", lambda now: now[1] == "HeaderValueConflict")
        await is_refused(here, 401, PROOF, "X-Team: the batch")
        await passes(here, PROOF, "X-Team: one")
