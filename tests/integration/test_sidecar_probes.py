"""Probes, the drain and the files: what a kubelet and a node see of a sidecar."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest

import virtual_time
from bookkeeping import sample
from kvquota_api import pod_config, usage
from kvquota_api.pod_config import PodConfig
from kvquota_api.usage import InForce, Rejected, SyncRequest, UsageReport
from kvquota_fakeengine.misbehaviour import Metrics, Misbehaviour
from kvquota_fakeengine.server import FakeEngineServer
from kvquota_fakeengine.settings import EngineSettings
from kvquota_sidecar.channel.admin import HEALTH_SECONDS
from kvquota_sidecar.engines.fetching import EngineUnavailableError, fetch
from kvquota_sidecar.proxy.engine_side import EngineAddress
from kvquota_sidecar.refusals import Code
from kvquota_sidecar.settings import Settings
from raw_client import Got
from raw_engine import RawEngine
from sidecar_rig import (
    KEYS,
    SEARCH,
    TOKEN,
    ManualClock,
    Running,
    both_ends,
    chat,
    config,
    eventually,
    get,
    identity,
    on_both_loops,
    post,
    running_sidecar,
    share,
    sync_request,
)
from wholepath import gauge

PROBE_SECONDS = 1.0  # that a kubelet waits for a probe unless the pod says otherwise
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


@asynccontextmanager
async def before_fake(**changes: Any) -> AsyncIterator[tuple[Running, FakeEngineServer]]:
    settings = EngineSettings(model="tiny", block_tokens=16, blocks=1024, decode_rate=1e6)
    async with FakeEngineServer(settings, control_port=0) as engine:
        port = int(engine.base_url.rpartition(":")[2])
        async with running_sidecar(("127.0.0.1", port), **{"sample_seconds": 0.05, **changes}) as running:
            yield running, engine


# The engine as it is seen.


@on_both_loops
async def test_the_report_says_what_the_engine_says() -> None:
    async with before_fake() as (running, _):
        await eventually("it was sampled", lambda: running.report().engine.used_blocks == 0)
        engine = running.report().engine
        assert (engine.state, engine.blocks, engine.block_tokens, engine.running) == ("Ready", 1024, 16, 0)
        assert (await admin(running, get("/readyz"))).status == 200


@on_both_loops
async def test_an_engine_without_metrics_is_ready_and_has_no_gauge() -> None:
    async with both_ends() as (running, _):
        await eventually("it was asked", lambda: running.report().engine.state == "Ready")
        assert running.report().engine == usage.EngineUsage(state="Ready")


@on_both_loops
async def test_an_engine_that_loses_its_metrics_shows_the_age_of_the_last_ones() -> None:
    async with before_fake() as (running, engine):
        await eventually("it was sampled", lambda: running.report().engine.blocks == 1024)
        await engine.misbehave(Misbehaviour(metrics=Metrics.MISSING))
        await eventually("the sample grows old", lambda: (running.report().engine.age_seconds or 0) > 0.3)
        assert running.report().engine.state == "Ready"


@on_both_loops
async def test_it_begins_when_the_engine_is_calm_and_in_any_case_after_five_seconds() -> None:
    for seconds, is_calm in ((4.9, False), (5.0, False), (0.0, True)):
        clock = ManualClock()
        async with both_ends(clock=clock, settle_seconds=Settings().settle_seconds) as (running, _):
            running.sidecar.books.observe(sample(used=20 if is_calm else 21), clock.now)
            clock.now += seconds
            refusal = running.sidecar._standing.unready()
            assert (None if refusal is None else refusal.code) == (Code.STARTING if seconds == 4.9 else None)


@on_both_loops
async def test_an_engine_that_is_gone_is_down_for_every_probe() -> None:
    async with before_fake() as (running, engine):
        assert (await admin(running, get("/engine/health"))).status == 200
        await engine.misbehave(Misbehaviour(refuse_connections=True))
        await eventually("it is down", lambda: running.report().engine.state == "Down")
        got = await admin(running, get("/engine/health"))
        assert (got.status, "Was --port obeyed?" in got.json()["message"]) == (503, True)
        assert (await admin(running, get("/readyz"))).status == 503
        assert (await admin(running, get("/healthz"))).status == 200
        await engine.misbehave(Misbehaviour())
        await eventually("it is back", lambda: running.report().engine.state == "Ready")


@on_both_loops
async def test_an_engine_that_hangs_is_unhealthy_and_is_let_go_of() -> None:
    async with RawEngine() as engine, running_sidecar(engine.address) as running:
        got = await admin(running, get("/engine/health"))
        said = f"does not answer: /health: no answer within {HEALTH_SECONDS:g} s. Was --port obeyed?"
        assert (got.status, said in got.json()["message"]) == (503, True)
        await (await engine.next()).gone()


def test_a_hanging_engine_is_given_up_before_the_kubelet_gives_up_the_probe() -> None:
    """In time that jumps, so that what it takes is what it waits for."""

    class Hanging:
        """A pool of an engine that takes everything and answers nothing; `given_up`: its calls that were cancelled."""

        address = EngineAddress("127.0.0.1", 1)
        given_up = 0

        def call(self, _request: bytes, _listener: object) -> Self:
            return self

        def cancel(self) -> None:
            self.given_up += 1

    async def probed(pool: Any) -> float:
        before = asyncio.get_running_loop().time()
        with pytest.raises(EngineUnavailableError):
            await fetch(pool, "/health", max_bytes=1, seconds=HEALTH_SECONDS)
        return asyncio.get_running_loop().time() - before

    hanging = Hanging()
    assert virtual_time.run(probed(hanging)) == pytest.approx(HEALTH_SECONDS)
    assert hanging.given_up == 1
    assert HEALTH_SECONDS <= PROBE_SECONDS - 0.2  # that is left for the way there and back


# The drain.


@on_both_loops
async def test_drain_returns_at_once_and_drain_wait_when_nothing_runs_any_more() -> None:
    clock = ManualClock()
    async with (
        both_ends(clock=clock, lame_duck_seconds=3.0, drain_seconds=50.0) as (running, engine),
        await running.connect() as client,
        await running.connect_admin() as kubelet,
    ):
        client.send(post(chat()))
        upstream = await engine.next()
        assert (await admin(running, get("/drain"))).status == 200
        assert (await admin(running, get("/readyz"))).status == 503
        kubelet.send(get("/drain/wait"))
        waiting = asyncio.create_task(kubelet.answer())
        clock.now += 3.0
        await asyncio.sleep(0.2)
        assert not waiting.done()
        upstream.answer(b"{}")
        assert (await client.answer()).status == 200
        assert (await waiting).status == 200


@on_both_loops
async def test_drain_wait_answers_at_its_limit_whatever_runs() -> None:
    clock = ManualClock()
    async with (
        both_ends(clock=clock, lame_duck_seconds=3.0, drain_seconds=50.0) as (running, engine),
        await running.connect() as client,
        await running.connect_admin() as kubelet,
    ):
        client.send(post(chat()))
        await engine.next()
        kubelet.send(get("/drain/wait"))
        await eventually("it drains", lambda: running.events("draining") != [])
        clock.now += 50.0
        assert (await kubelet.answer()).status == 200
        assert running.in_flight() == 1


@on_both_loops
async def test_a_kubelet_that_hangs_up_changes_nothing() -> None:
    async with both_ends(lame_duck_seconds=60.0, drain_seconds=60.0) as (running, _):
        async with await running.connect_admin() as kubelet:
            kubelet.send(get("/drain/wait"))
            await eventually("it drains", lambda: running.events("draining") != [])
        await eventually("it has hung up", lambda: not running.sidecar._admin_hub.connections)
        assert (await admin(running, get("/healthz"))).status == 200
        running.sidecar.hurry()


# The files.


def write_files(folder: Path, wanted: PodConfig | None = None, token: str = TOKEN) -> None:
    (folder / "identity").mkdir(exist_ok=True)
    if wanted is not None:
        (folder / "config.json").write_bytes(pod_config.encode(wanted))
    (folder / "identity" / "identity.json").write_bytes(pod_config.encode(identity()))
    (folder / "identity" / "token").write_text(f"{token}\n")


@asynccontextmanager
async def from_files(folder: Path) -> AsyncIterator[Running]:
    async with both_ends(
        configured=False, config=folder / "config.json", identity=folder / "identity", files_seconds=0.05
    ) as (running, _):
        yield running


@on_both_loops
async def test_files_are_in_force_from_the_first_request_on_and_followed(tmp_path: Path) -> None:
    write_files(tmp_path, config())
    async with from_files(tmp_path) as running:
        assert running.report().in_force.source == "File"
        assert (await asked(running, get("/v1/usage", f"Authorization: Bearer {KEYS[SEARCH]}"))).status == 200
        write_files(tmp_path, config(generation=2, model="other"), token="another")
        await eventually("the new ones are in force", lambda: running.report().in_force.generation == 2)
        await eventually("the new token too", lambda: running.sidecar._token.value == b"another")
        assert (await admin(running, get("/v1/usage", BEARER))).status == 401
        assert (await admin(running, get("/v1/usage", "Authorization: Bearer another"))).status == 200


@on_both_loops
async def test_files_may_come_later(tmp_path: Path) -> None:
    async with from_files(tmp_path) as running:
        assert running.report().in_force == InForce()
        write_files(tmp_path, config())
        await eventually("they are in force", lambda: running.report().in_force.generation == 1)


@on_both_loops
async def test_a_broken_file_is_reported_and_a_vanished_one_changes_nothing(tmp_path: Path) -> None:
    write_files(tmp_path, config())
    async with from_files(tmp_path) as running:
        (tmp_path / "config.json").write_bytes(b"{")
        await eventually("it is reported", lambda: running.report().rejected is not None)
        rejected = running.report().rejected
        assert isinstance(rejected, Rejected)
        assert (rejected.reason, rejected.message.startswith("File: ")) == ("InvalidConfig", True)
        (tmp_path / "config.json").unlink()
        await asyncio.sleep(0.2)
        assert running.report().in_force.generation == 1
        write_files(tmp_path, config(generation=2, model="other"))
        await eventually("it is healed", lambda: running.report().rejected is None)
        assert running.report().in_force.generation == 2


@on_both_loops
async def test_a_file_that_is_behind_the_channel_is_late_and_not_wrong(tmp_path: Path) -> None:
    write_files(tmp_path, config())
    async with from_files(tmp_path) as running:
        newer = config(share(SEARCH, soft=1, hard=2), generation=7)
        assert (await synced(running, sync_request(newer))).in_force.source == "Channel"
        write_files(tmp_path, config(generation=3, model="other"))
        await asyncio.sleep(0.2)
        report = running.report()
        assert (report.in_force.generation, report.rejected) == (7, None)


# A config without an identity: its pool's Secret went, and then the container started again.


def forget_identity(folder: Path) -> None:
    (folder / "identity" / "identity.json").unlink()


async def said(running: Running, metric: str) -> float:
    return gauge((await admin(running, get("/metrics"))).body.decode(), metric)


@on_both_loops
async def test_a_config_whose_tenants_nobody_can_tell_apart_is_no_quota_yet(tmp_path: Path) -> None:
    write_files(tmp_path, config())
    forget_identity(tmp_path)
    async with from_files(tmp_path) as running:
        for refused in (await asked(running, post(chat())), await asked(running, get("/health"))):
            assert (refused.status, refused.code) == (503, "not_configured")
        assert "has not received its quotas" in (await admin(running, get("/readyz"))).json()["message"]
        assert running.report().in_force == InForce(generation=1, config_digest=config().digest, source="File")
        assert await said(running, "kvquota_configured") == 0
        file = tmp_path / "identity" / "identity.json"
        assert [each["message"] for each in running.events("waiting")] == [
            f"waiting for the identity: {file} does not exist yet and no operator has called yet;"
            " until then failurePolicy Closed decides about every request"
        ]
        write_files(tmp_path)
        await eventually("it is in force", lambda: running.report().in_force.identity_digest == identity().digest)
        assert (await asked(running, get("/v1/usage", f"Authorization: Bearer {KEYS[SEARCH]}"))).status == 200
        assert await said(running, "kvquota_configured") == 1


@on_both_loops
async def test_an_identity_whose_file_goes_stays_in_force(tmp_path: Path) -> None:
    write_files(tmp_path, config())
    async with from_files(tmp_path) as running:
        forget_identity(tmp_path)
        (tmp_path / "identity" / "token").unlink()
        await asyncio.sleep(0.2)
        assert (await asked(running, get("/v1/usage", f"Authorization: Bearer {KEYS[SEARCH]}"))).status == 200
        assert (await admin(running, get("/v1/usage", BEARER))).status == 200


@on_both_loops
async def test_without_an_identity_the_open_policy_lets_pass_and_counts(tmp_path: Path) -> None:
    write_files(tmp_path, config())
    forget_identity(tmp_path)
    files: dict[str, Any] = {"config": tmp_path / "config.json", "identity": tmp_path / "identity"}
    async with (
        both_ends(configured=False, failure_policy="Open", **files) as (running, engine),
        await running.connect() as client,
    ):
        client.send(post(chat()).replace(b"kvq-", b"no-"))
        (await engine.next()).answer(b"{}")
        assert (await client.answer()).status == 200
        assert await said(running, "kvquota_passed_unconfigured_total") == 1
        assert running.report().in_force.generation == 1


@on_both_loops
async def test_where_everybody_is_the_same_tenant_no_identity_is_waited_for(tmp_path: Path) -> None:
    write_files(tmp_path, config(share(SEARCH, soft=1, hard=2), anonymous_tenant=SEARCH))
    forget_identity(tmp_path)
    async with from_files(tmp_path) as running:
        assert (await asked(running, get("/v1/usage"))).status == 200
        assert (await asked(running, post(chat(max_tokens=600)))).code == "request_exceeds_kv_quota"
        assert await said(running, "kvquota_configured") == 1
