"""The admin port and the files: config and identity in, usage out, probes, drain."""

import json
from typing import Any

import msgspec
import pytest

from kvquota_api import pod_config, usage
from kvquota_api.pod_config import MAX_TENANTS
from kvquota_api.usage import InForce, SyncRequest, UsageReport
from kvquota_sidecar.telemetry.metrics import MAX_TENANT_LABELS
from raw_client import Got
from sidecar_rig import (
    BATCH,
    BLOCK_TOKENS,
    KEYS,
    SEARCH,
    TOKEN,
    ManualClock,
    Running,
    both_ends,
    chat,
    config,
    get,
    identity,
    on_both_loops,
    post,
    share,
    sync_request,
)

BEARER = f"Authorization: Bearer {TOKEN}"


def sync_post(request: SyncRequest | bytes, *headers: str) -> bytes:
    body = request if isinstance(request, bytes) else usage.encode(request)
    lines = ["POST /v1/sync HTTP/1.1", "Host: pod", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


async def admin(running: Running, data: bytes) -> Got:
    async with await running.connect_admin() as client:
        return await client.ask(data)


async def synced(running: Running, request: SyncRequest) -> UsageReport:
    got = await admin(running, sync_post(request, BEARER))
    assert got.status == 200, got.body
    return usage.decode_report(got.body)


async def asked(running: Running, data: bytes) -> Got:
    async with await running.connect() as client:
        return await client.ask(data)


# Sync.


@on_both_loops
async def test_before_the_first_config_nothing_passes_and_the_pod_is_not_ready() -> None:
    async with both_ends(configured=False) as (running, _):
        got = await asked(running, post(chat()))
        assert (got.status, got.code) == (503, "not_configured")
        assert (await asked(running, get("/health"))).status == 503
        assert (await admin(running, get("/readyz"))).status == 503
        assert (await admin(running, get("/healthz"))).status == 200
        assert (await synced(running, sync_request())).in_force == InForce()


@on_both_loops
async def test_with_the_open_policy_everything_allowed_passes_uncounted_until_a_config_comes() -> None:
    async with (
        both_ends(configured=False, failure_policy="Open") as (running, engine),
        await running.connect() as client,
    ):
        body = chat(priority=3, cache_salt="mine")
        client.send(post(body))
        upstream = await engine.next()
        upstream.answer(b"{}")
        got = await client.answer()
        assert upstream.body == body
        assert (got.status, "x-kvquota-rung" in got.headers) == (200, False)
        assert (await client.ask(get("/pause"))).status == 404
        assert running.sidecar.tally.passed_unconfigured == 1
        assert (await client.ask(get("/v1/usage"))).code == "not_configured"
        await synced(running, sync_request(config(), identity()))
        assert (await client.ask(post(chat()).replace(b"kvq-", b"no-"))).status == 401


@on_both_loops
async def test_a_sync_brings_config_and_identity_into_force_for_the_next_request() -> None:
    async with both_ends(configured=False) as (running, engine):
        wanted, known = config(), identity()
        report = await synced(running, sync_request(wanted, known))
        assert report.in_force == InForce(
            generation=1, config_digest=wanted.digest, identity_digest=known.digest, source="Channel"
        )
        assert [each.id for each in report.tenants] == [SEARCH, BATCH]
        async with await running.connect() as client:
            client.send(post(chat()))
            (await engine.next()).answer(b"{}")
            assert (await client.answer()).status == 200


@on_both_loops
async def test_a_lowered_hard_binds_the_next_request_and_ends_nothing() -> None:
    async with both_ends() as (running, engine), await running.connect() as client, await running.connect() as other:
        client.send(post(chat()))
        upstream = await engine.next()
        await synced(running, sync_request(config(share(SEARCH, soft=0, hard=6), generation=2)))
        refused = await other.ask(post(chat()))
        assert (refused.status, refused.code) == (429, "tenant_kv_quota_exceeded")
        upstream.answer(b"{}")
        assert (await client.answer()).status == 200
        await running.idle()


def edited_config(**changes: Any) -> bytes:
    document = json.loads(pod_config.encode(config(generation=2)))
    return json.dumps(document | changes).encode()


BAD_CONFIGS = {
    "a field that nobody knows": (edited_config(extra=1), "InvalidConfig", 0),
    "a field of the wrong type": (edited_config(model=3), "InvalidConfig", 0),
    "a digest of something else": (edited_config(model="other"), "InvalidConfig", 0),
    "no JSON object": (b"[]", "InvalidConfig", 0),
    "an older generation": (pod_config.encode(config(share(SEARCH, soft=1, hard=1))), "GenerationWentBack", 1),
    "the same generation with other content": (
        pod_config.encode(config(share(SEARCH, soft=1, hard=1), generation=5)),
        "GenerationWentBack",
        5,
    ),
}


@pytest.mark.parametrize(("document", "reason", "generation"), BAD_CONFIGS.values(), ids=BAD_CONFIGS)
@on_both_loops
async def test_a_bad_config_is_refused_whole_with_a_reason_and_the_last_good_one_stays(
    document: bytes, reason: str, generation: int
) -> None:
    good = config(generation=5)
    async with both_ends(wanted=good) as (running, engine):
        report = await synced(running, SyncRequest(config_digest="x", identity_digest="", config=msgspec.Raw(document)))
        assert report.rejected is not None
        assert (report.rejected.reason, report.rejected.generation) == (reason, generation)
        assert report.in_force.config_digest == good.digest
        async with await running.connect() as client:
            client.send(post(chat()))
            (await engine.next()).answer(b"{}")
            assert (await client.answer()).status == 200
        healed = await synced(running, sync_request(config(generation=6)))
        assert (healed.rejected, healed.in_force.generation) == (None, 6)


@on_both_loops
async def test_a_config_for_another_pod_is_refused() -> None:
    async with both_ends(configured=False, pod_uid="uid-0") as (running, _):
        other = config(pod=pod_config.PodRef(namespace="shop", name="pod-1", uid="uid-1"))
        refused = await synced(running, sync_request(other))
        assert refused.rejected is not None
        assert refused.rejected.reason == "WrongPod"
        assert (await synced(running, sync_request(config()))).in_force.generation == 1


@on_both_loops
async def test_a_bad_identity_is_refused_and_the_config_beside_it_taken() -> None:
    async with both_ends(configured=False) as (running, _):
        wanted = config()
        request = SyncRequest(
            config_digest="",
            identity_digest="",
            identity=msgspec.Raw(b"{}"),
            config=msgspec.Raw(pod_config.encode(wanted)),
        )
        report = await synced(running, request)
        assert report.rejected is not None
        assert report.rejected.reason == "InvalidIdentity"
        assert report.in_force.config_digest == wanted.digest


@on_both_loops
async def test_reports_are_numbered_within_one_epoch() -> None:
    async with both_ends() as (running, _):
        reports = [await synced(running, sync_request()) for _ in range(3)]
        assert len({each.epoch for each in reports}) == 1
        numbers = [each.sequence for each in reports]
        assert numbers == sorted(set(numbers))


STRANGERS = {
    "no token": [],
    "another token": ["Authorization: Bearer nonsense"],
    "an empty token": ["Authorization: Bearer "],
    "the token in another scheme": [f"Authorization: Basic {TOKEN}"],
    "the token twice": [BEARER, BEARER],
    "an API key": [f"Authorization: Bearer {KEYS[SEARCH]}"],
}


@pytest.mark.parametrize("headers", STRANGERS.values(), ids=STRANGERS)
@on_both_loops
async def test_without_the_token_nothing_is_taken_and_no_tenant_is_named(headers: list[str]) -> None:
    async with both_ends(configured=False) as (running, _):
        assert (await admin(running, sync_post(sync_request(config()), *headers))).status == 401
        assert (await admin(running, get("/v1/usage", *headers))).status == 401
        assert running.report().in_force == InForce()
        running.sidecar.sync(sync_request(config()))
        assert SEARCH.encode() not in (await admin(running, get("/metrics", *headers))).body


@on_both_loops
async def test_what_is_no_sync_request_is_a_400_that_names_the_field() -> None:
    async with both_ends() as (running, _):
        got = await admin(running, sync_post(b'{"version":1,"configDigest":3,"identityDigest":""}', BEARER))
        assert (got.status, "configDigest" in got.json()["message"]) == (400, True)
        got = await admin(running, sync_post(b"\xff", BEARER))
        assert got.status == 400
        over = sync_post(b"", BEARER).replace(b"Content-Length: 0", b"Content-Length: 99999999")
        assert (await admin(running, over)).status == 413
        assert (await admin(running, get("/nowhere"))).status == 404


# The operator is away, or asks for more than there is room for.


@on_both_loops
async def test_an_operator_that_is_gone_for_an_hour_changes_nothing_and_is_seen_to_be_gone() -> None:
    clock = ManualClock()
    wanted = config(share(SEARCH, soft=0, hard=20))
    async with both_ends(configured=False, clock=clock) as (running, engine):
        assert "kvquota_sync_age_seconds" not in (await admin(running, get("/metrics"))).body.decode()
        await synced(running, sync_request(wanted, identity()))
        clock.now += 3600
        assert "kvquota_sync_age_seconds 3600.0" in (await admin(running, get("/metrics"))).body.decode().splitlines()
        async with await running.connect() as client:
            client.send(post(chat(max_tokens=1)))
            (await engine.next()).answer(b"{}")
            assert (await client.answer()).status == 200
            assert (await client.ask(post(chat(max_tokens=600)))).code == "request_exceeds_kv_quota"
        assert running.sidecar._standing.unready() is None
        assert (await synced(running, sync_request())).in_force.config_digest == wanted.digest


@on_both_loops
async def test_names_that_nobody_gave_are_counted_nowhere_and_names_without_end_share_a_label() -> None:
    many = config(*(share(f"shop/t{each}", soft=0, hard=1000) for each in range(MAX_TENANTS)))
    async with both_ends(configured=False) as (running, _), await running.connect() as client:
        report = await synced(running, sync_request(many, identity()))
        assert len(report.tenants) == MAX_TENANTS
        before = (await admin(running, get("/metrics", BEARER))).body
        for each in range(200):
            request = post(chat()).replace(KEYS[SEARCH].encode(), b"nobody-%d" % each)
            assert (await client.ask(request)).status == 401
        after = (await admin(running, get("/metrics", BEARER))).body
        assert len((await synced(running, sync_request())).tenants) == MAX_TENANTS
    labels = {line.split('tenant="')[1].split('"')[0] for line in after.decode().splitlines() if 'tenant="' in line}
    assert (len(labels), "other" in labels) == (MAX_TENANT_LABELS + 1, True)
    assert len(after.splitlines()) - len(before.splitlines()) < 10


@on_both_loops
async def test_a_config_of_more_tenants_than_there_may_be_is_refused_whole() -> None:
    too_many = json.loads(pod_config.encode(config()))
    too_many["tenants"] = [{**too_many["tenants"][0], "id": f"shop/t{each}"} for each in range(MAX_TENANTS + 1)]
    document = SyncRequest(config_digest="", identity_digest="", config=msgspec.Raw(json.dumps(too_many).encode()))
    async with both_ends(configured=False) as (running, _):
        report = await synced(running, document)
    assert report.rejected is not None
    assert (report.rejected.reason, "tenants" in report.rejected.message) == ("InvalidConfig", True)
    assert report.in_force == InForce()


# Usage and metrics.


@on_both_loops
async def test_a_tenant_sees_its_own_usage_and_nobody_elses() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        upstream = await engine.next()
        mine = (await asked(running, get("/v1/usage", f"Authorization: Bearer {KEYS[SEARCH]}"))).json()
        yours = (await asked(running, get("/v1/usage", f"Authorization: Bearer {KEYS[BATCH]}"))).json()
        upstream.answer(b"{}")
        await client.answer()
        assert (await asked(running, get("/v1/usage"))).status == 401
    assert (mine["tenant"], mine["inFlight"], mine["reserved"] > 0) == (SEARCH, 1, True)
    assert (yours["tenant"], yours["inFlight"], yours["reserved"]) == (BATCH, 0, 0)
    assert (yours["unit"], yours["soft"], yours["hard"]) == ("tokens", 400 * BLOCK_TOKENS, 1000 * BLOCK_TOKENS)


@on_both_loops
async def test_the_token_shows_the_usage_of_all() -> None:
    async with both_ends() as (running, _):
        got = await admin(running, get("/v1/usage", BEARER))
        assert [each.id for each in usage.decode_report(got.body).tenants] == [SEARCH, BATCH]


@on_both_loops
async def test_metrics_name_tenants_only_to_those_who_have_the_token() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(chat()))
        (await engine.next()).answer(b"{}")
        await client.answer()
        await client.ask(get("/nowhere"))
        known = (await admin(running, get("/metrics", BEARER))).body.decode()
        unknown = (await admin(running, get("/metrics"))).body.decode()
    lines = set(known.splitlines())
    assert 'kvquota_requests_total{outcome="answered",route="/v1/chat/completions"} 1.0' in lines
    assert 'kvquota_requests_total{outcome="route_not_allowed",route="other"} 1.0' in lines
    assert f'kvquota_tenant_admitted_total{{tenant="{SEARCH}"}} 1.0' in lines
    assert "kvquota_engine_used_blocks" not in known  # this engine does not say: missing, not 0
    assert "tenant" not in {line.partition("{")[2].partition("=")[0] for line in unknown.splitlines()}
