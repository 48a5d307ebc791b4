"""Who a client is, through the whole sidecar: keys, tokens and peers, and what becomes of them when they change."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from identities import PEER_SECRET, Who, claims, public_jwk, signing_set, token
from kvquota_api import pod_config, usage
from kvquota_api.pod_config import PoolIdentity
from kvquota_sidecar.proxy.identity import PEER_SECRET_HEADER
from raw_client import Got, RawClient
from raw_engine import RawEngine
from sidecar_mounts import Volume
from sidecar_rig import (
    BATCH,
    KEYS,
    PEPPER,
    SEARCH,
    TOKEN,
    Running,
    begun_stream,
    both_ends,
    chat,
    config,
    eventually,
    get,
    identity,
    on_both_loops,
    sync_request,
)

NEW_KEY = "kvq-" + "0c" * 32
PROOF = f"{PEER_SECRET_HEADER.decode()}: {PEER_SECRET}"
WHO = Who(PEPPER, keys={key: tenant for tenant, key in KEYS.items()})
# The sidecar's own clock is the wall: these hold for a while yet.
GOOD = token(claims(exp=time.time() + 3600))
OF_BATCH = token(claims(exp=time.time() + 3600, tenant="batch"))


def trusting(**changes: str) -> PoolIdentity:
    """The keys of both tenants, a token's issuer and a peer."""
    parts = {"jwks": signing_set("ES256"), "header": "X-Team", **changes}
    return Who(PEPPER, keys=WHO.keys, values={"search": SEARCH, "batch": BATCH}, **parts).identity()


def post(*headers: str, path: str = "/v1/chat/completions", body: bytes | None = None) -> bytes:
    """A whole POST of whom the headers say."""
    text = chat() if body is None else body
    lines = [f"POST {path} HTTP/1.1", "Host: sidecar", *headers, "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(text)}", "", ""]).encode() + text


def bearer(credential: str) -> str:
    return f"Authorization: Bearer {credential}"


async def sync_identity(running: Running, known: PoolIdentity) -> None:
    """As the operator does it: POST /v1/sync."""
    body = usage.encode(sync_request(None, known))
    lines = ["POST /v1/sync HTTP/1.1", "Host: pod", bearer(TOKEN), f"Content-Length: {len(body)}", "", ""]
    async with await running.connect_admin() as client:
        got = await client.ask("\r\n".join(lines).encode() + body)
    assert usage.decode_report(got.body).in_force.identity_digest == known.digest


async def answered(client: RawClient, engine: RawEngine, request: bytes) -> tuple[int, dict[str, str]]:
    """The status of a request that passes, and the headers that the engine got."""
    client.send(request)
    upstream = await engine.next()
    upstream.answer(b"{}")
    return (await client.answer()).status, upstream.headers


async def refused(client: RawClient, request: bytes) -> tuple[int, str]:
    got: Got = await client.ask(request)
    return got.status, got.code


# Keys that change.


async def old_stops_new_works_and_streams_go_on(running: Running, engine: RawEngine) -> None:
    """After NEW_KEY has taken the place of the tenant's key."""
    async with await running.connect() as client:
        assert await refused(client, post(bearer(KEYS[SEARCH]))) == (401, "unknown_tenant")
        assert (await answered(client, engine, post(bearer(NEW_KEY))))[0] == 200


@on_both_loops
async def test_a_key_that_a_sync_takes_away_stops_and_its_running_stream_goes_on() -> None:
    async with both_ends() as (running, engine), await running.connect() as kept:
        assert (await answered(kept, engine, post(bearer(KEYS[SEARCH]))))[0] == 200
        async with begun_stream(running, engine) as stream:
            await sync_identity(running, Who(PEPPER, keys={NEW_KEY: SEARCH}).identity())
            assert await refused(kept, post(bearer(KEYS[SEARCH]))) == (401, "unknown_tenant")
            await old_stops_new_works_and_streams_go_on(running, engine)
            stream.upstream.frame("last")
            stream.upstream.end_stream()
            assert b"last" in await stream.client.line(b"[DONE]")
        await running.idle()


def secret(known: PoolIdentity) -> dict[str, bytes]:
    """The files of the pool's Secret."""
    return {"token": TOKEN.encode(), "identity.json": pod_config.encode(known)}


@asynccontextmanager
async def started_from_files(folder: Path) -> AsyncIterator[tuple[Running, RawEngine, Volume]]:
    mounted = Volume(folder / "identity", secret(identity()))
    (folder / "config.json").write_bytes(pod_config.encode(config()))
    files = {"config": folder / "config.json", "identity": mounted.folder, "files_seconds": 0.02}
    async with both_ends(configured=False, **files) as (running, engine):
        yield running, engine, mounted


@on_both_loops
async def test_a_key_that_the_mounted_folder_changes_stops_and_its_running_stream_goes_on(tmp_path: Path) -> None:
    async with (
        started_from_files(tmp_path) as (running, engine, mounted),
        begun_stream(running, engine) as stream,
    ):
        wanted = Who(PEPPER, keys={NEW_KEY: SEARCH}).identity()
        mounted.write(secret(wanted))
        await eventually(
            "the new identity is in force", lambda: running.report().in_force.identity_digest == wanted.digest
        )
        await old_stops_new_works_and_streams_go_on(running, engine)
        stream.upstream.frame("last")
        stream.upstream.end_stream()
        assert b"last" in await stream.client.line(b"[DONE]")


@on_both_loops
async def test_a_damaged_identity_in_the_folder_takes_nobodys_key_away(tmp_path: Path) -> None:
    async with started_from_files(tmp_path) as (running, engine, mounted), await running.connect() as client:
        (mounted.folder / "..data" / "identity.json").write_bytes(b"{")
        await eventually("the damage is told", lambda: running.report().rejected is not None)
        assert (await answered(client, engine, post(bearer(KEYS[SEARCH]))))[0] == 200


# Tokens and peers.


@on_both_loops
async def test_a_token_names_its_tenant_until_its_key_is_replaced() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        assert await refused(client, post(bearer(GOOD))) == (401, "unknown_tenant")
        await sync_identity(running, trusting())
        status, headers = await answered(client, engine, post(bearer(GOOD)))
        assert (status, headers["authorization"]) == (200, f"Bearer {GOOD}")
        assert (await answered(client, engine, post(bearer(GOOD), f"x-api-key: {KEYS[SEARCH]}")))[0] == 200
        assert await refused(client, post(bearer(GOOD), f"x-api-key: {KEYS[BATCH]}")) == (400, "ambiguous_identity")
        assert await refused(client, post(bearer(GOOD[:-4] + "AAAA"))) == (401, "unknown_tenant")
        await sync_identity(running, trusting(jwks=json.dumps({"keys": [public_jwk("P-256", 1, kid="k1")]})))
        assert await refused(client, post(bearer(GOOD))) == (401, "unknown_tenant")
        new = token(claims(exp=time.time() + 3600), number=1)
        assert (await answered(client, engine, post(bearer(new))))[0] == 200


@on_both_loops
async def test_a_peer_names_the_tenant_and_the_engine_sees_neither_the_name_nor_the_secret() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        await sync_identity(running, trusting())
        client.send(post(PROOF, "X-Team: batch"))
        upstream = await engine.next()
        assert (running.in_flight(SEARCH), running.in_flight(BATCH)) == (0, 1)
        upstream.answer(b"{}")
        assert (await client.answer()).status == 200
        assert not {"x-team", PEER_SECRET_HEADER.decode(), "authorization"} & upstream.headers.keys()


UNKNOWN, AMBIGUOUS, MALFORMED = (401, "unknown_tenant"), (400, "ambiguous_identity"), (400, "malformed_request")
REFUSED = {
    "a tenant's name without the secret": (("X-Team: search",), UNKNOWN),
    "another secret": ((PROOF + "x", "X-Team: search"), UNKNOWN),
    "another header than the pool's": ((PROOF, "X-Tenant: search"), UNKNOWN),
    "two names": ((PROOF, "X-Team: search", "X_TEAM: batch"), AMBIGUOUS),
    "the name in another spelling": ((PROOF, "X_Team: search"), AMBIGUOUS),
    "the secret in another spelling": ((PROOF.replace("-", "_"), "X-Team: search"), UNKNOWN),
    "a key of another tenant": ((PROOF, "X-Team: search", bearer(KEYS[BATCH])), AMBIGUOUS),
    "a token of another tenant": ((PROOF, "X-Team: search", bearer(OF_BATCH)), AMBIGUOUS),
    "a header folded over two lines": ((PROOF, "X-Team: se\r\n arch"), MALFORMED),
    "a space before the colon": ((PROOF, "X-Team : search"), MALFORMED),
    "a name that is not ASCII": ((PROOF, "X-T\u0435am: search"), MALFORMED),
}


@pytest.mark.parametrize(("headers", "expected"), REFUSED.values(), ids=REFUSED)
@on_both_loops
async def test_who_is_refused(headers: tuple[str, ...], expected: tuple[int, str]) -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        await sync_identity(running, trusting())
        assert await refused(client, post(*headers)) == expected
        assert engine.accepted == 0


@on_both_loops
async def test_where_the_pool_removes_credentials_the_engine_gets_none() -> None:
    async with both_ends(wanted=config(authorization="Remove")) as (running, engine), await running.connect() as client:
        await sync_identity(running, trusting())
        for shown in (bearer(GOOD), bearer(KEYS[SEARCH])):
            status, headers = await answered(client, engine, post(shown))
            assert (status, "authorization" in headers) == (200, False)


@on_both_loops
async def test_no_credential_is_in_the_log_the_metrics_or_an_answer() -> None:
    shown = (KEYS[SEARCH], GOOD, OF_BATCH, PEER_SECRET, NEW_KEY, PEPPER)
    wrong = (
        (bearer(NEW_KEY),),
        (bearer(GOOD), f"x-api-key: {KEYS[BATCH]}"),
        (PROOF, "X-Team: nobody"),
        (PROOF, f"X-Team: {KEYS[SEARCH]}"),
        (PROOF, "X-Team: search", bearer(OF_BATCH)),
    )
    async with both_ends() as (running, engine):
        await sync_identity(running, trusting())
        async with await running.connect() as client:
            await answered(client, engine, post(bearer(GOOD)))
            answers = [await client.ask(post(*headers)) for headers in wrong]
            usage_of_own = await client.ask(get("/v1/usage", bearer(GOOD)))
        async with await running.connect_admin() as client:
            metrics = await client.ask(get("/metrics", bearer(TOKEN)))
        assert [each.status for each in (*answers, usage_of_own, metrics)] == [401, 400, 401, 401, 400, 200, 200]
    said = running.log.getvalue() + repr(running.sidecar) + str([*answers, usage_of_own, metrics])
    assert "refused" in said
    assert [each for each in shown if each in said] == []
