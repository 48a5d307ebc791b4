"""A sidecar that starts anew: in front of a busy engine, across the engine's own restart, and from what it finds."""

import http.client
import json
import os
import signal
import socket
import time
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

from kvquota_api import pod_config, usage
from kvquota_api.pod_config import PodConfig
from kvquota_api.usage import UsageReport
from sidecar_mounts import Volume
from sidecar_program import (
    AUTHORIZED,
    DEADLINE_SECONDS,
    Program,
    begun_stream,
    engine,
    files_of,
    mounted,
    replaced,
    rest_of,
    send,
    start,
    until,
)
from sidecar_rig import BATCH, SEARCH, TOKEN, chat, config, identity, post, share, sync_request
from testcluster.processes import Keeper

CONFIG = "config.json"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
SLOW = ("--decode-rate", "20", "--block-size", "16", "--num-gpu-blocks-override", "1024")
QUICK = ("--lame-duck-seconds", "0", "--drain-seconds", "0", "--sample-seconds", "0.1", "--files-seconds", "0.1")


def report(program: Program) -> UsageReport:
    return usage.decode_report(send(f"{program.admin_url}/v1/usage", **BEARER)[1])


def reserved(program: Program) -> dict[str, int]:
    return {each.id: each.reserved for each in report(program).tenants if each.reserved}


def ready(program: Program) -> int:
    return send(f"{program.url}/health")[0]


# In front of an engine that is busy.


def test_the_books_are_empty_and_what_the_engine_still_holds_is_charged_to_nobody(
    keeper: Keeper, tmp_path: Path
) -> None:
    behind = engine(keeper, tmp_path, *SLOW)
    program = start(keeper, mounted(tmp_path), "--engine", behind, *files_of(tmp_path), *QUICK)
    until("it is ready", lambda: ready(program) == 200)
    foreign = json.dumps({"model": "tiny", "prompt": [5] * 3200, "max_tokens": 700, "ignore_eos": True, "stream": True})
    where = urlsplit(behind)
    with (
        closing(http.client.HTTPConnection(where.hostname or "", where.port, timeout=DEADLINE_SECONDS)) as other,
        begun_stream(program, 600),
    ):
        other.request("POST", "/v1/completions", foreign, {"Content-Type": "application/json"})
        assert other.getresponse().status == 200
        assert set(reserved(program)) == {SEARCH}
        replaced(program)
        began = time.monotonic()
        assert ready(program) == 503
        assert send(f"{program.admin_url}/readyz")[0] == 503
        assert send(f"{program.url}/v1/chat/completions", chat(max_tokens=1), **AUTHORIZED)[0] == 200
        until("it has read the gauge", lambda: getattr(report(program).pool, "unattributed", 0) >= 200)
        assert reserved(program) == {}
        until("it is ready", lambda: ready(program) == 200)
        assert time.monotonic() - began > 3
    until("the rest is gone with the engine's use", lambda: getattr(report(program).pool, "unattributed", 0) == 0)


def test_it_is_ready_as_soon_as_the_engine_is_done_with_what_was_before(keeper: Keeper, tmp_path: Path) -> None:
    behind = engine(keeper, tmp_path, *SLOW)
    program = start(keeper, mounted(tmp_path), "--engine", behind, *files_of(tmp_path), *QUICK)
    until("it is ready", lambda: ready(program) == 200)
    with begun_stream(program, 600):
        replaced(program)
        began = time.monotonic()
        until("it is ready", lambda: ready(program) == 200)
    assert time.monotonic() - began < 4
    assert reserved(program) == {}


def test_a_child_killed_again_and_again_lets_no_tenant_over_its_hard(keeper: Keeper, tmp_path: Path) -> None:
    hard = 30
    wanted = config(share(SEARCH, soft=10, hard=hard), share(BATCH, soft=10, hard=hard))
    behind = engine(keeper, tmp_path, *SLOW)
    program = start(keeper, mounted(tmp_path, wanted), "--engine", behind, *files_of(tmp_path), *QUICK)
    until("it is ready", lambda: ready(program) == 200)
    where = urlsplit(program.url)
    for _ in range(3):
        with ExitStack() as clients:
            statuses = []
            for _ in range(10):
                client = socket.create_connection((where.hostname, where.port), DEADLINE_SECONDS)
                clients.enter_context(client)
                client.sendall(post(chat(stream=True, max_tokens=100, ignore_eos=True)))
                statuses.append(client.recv(65536).split(b" ")[1])
                assert sum(reserved(program).values()) <= hard
            assert {b"200", b"429"} == set(statuses)
            replaced(program)
        assert reserved(program) == {}


def test_across_a_restart_of_the_engine_what_was_lost_is_released_and_the_next_is_served(
    keeper: Keeper, tmp_path: Path
) -> None:
    behind = engine(keeper, tmp_path, *SLOW)
    program = start(keeper, mounted(tmp_path), "--engine", behind, *files_of(tmp_path), *QUICK)
    until("it is ready", lambda: ready(program) == 200)
    with begun_stream(program, 600) as client:
        assert set(reserved(program)) == {SEARCH}
        lost = next(each for each in keeper.servers if each.name == "engine")
        os.killpg(lost.process.pid, signal.SIGKILL)
        assert b"[DONE]" not in rest_of(client)
    until("it is released", lambda: reserved(program) == {})
    until("it is not ready", lambda: send(f"{program.admin_url}/readyz")[0] == 503)
    (tmp_path / "engine.log").unlink()
    engine(keeper, tmp_path, *SLOW, "--port", behind.rpartition(":")[2])
    until("it is ready", lambda: send(f"{program.admin_url}/readyz")[0] == 200)
    assert send(f"{program.url}/v1/chat/completions", chat(max_tokens=2), **AUTHORIZED)[0] == 200
    assert program.events("child_ended") == []


# From what it finds on the disk.


def started(keeper: Keeper, folder: Path, *flags: str, policy: str = "Closed") -> tuple[Program, Volume]:
    volume = Volume(folder / "config")
    (folder / "identity").mkdir()
    (folder / "identity" / "identity.json").write_bytes(pod_config.encode(identity()))
    (folder / "identity" / "token").write_text(TOKEN)
    mounts = ["--config", str(folder / "config" / CONFIG), "--identity", str(folder / "identity")]
    behind = engine(keeper, folder)
    return start(keeper, folder, "--engine", behind, *mounts, "--failure-policy", policy, *QUICK, *flags), volume


def configured(wanted: PodConfig) -> dict[str, bytes]:
    """The files of the pod's ConfigMap."""
    return {CONFIG: pod_config.encode(wanted)}


def in_force(program: Program, generation: int) -> bool:
    return report(program).in_force.generation == generation


def test_a_mounted_config_is_replaced_by_its_links_kept_when_it_vanishes_and_found_again_after_a_restart(
    keeper: Keeper, tmp_path: Path
) -> None:
    program, volume = started(keeper, tmp_path)
    assert report(program).in_force.source == "None"
    volume.write(configured(config()))
    until("the first is in force", lambda: in_force(program, 1))
    volume.write(configured(config(generation=2, model="other")))
    until("the second is in force", lambda: in_force(program, 2))
    volume.write(configured(config(generation=1)))  # of an operator's copy that is behind
    _pause()
    assert (in_force(program, 2), report(program).rejected) == (True, None)
    volume.remove()
    _pause()
    assert in_force(program, 2)
    assert send(f"{program.url}/v1/chat/completions", chat(max_tokens=1), **AUTHORIZED)[0] == 200
    volume.write(configured(config(generation=3)))
    until("the third is in force", lambda: in_force(program, 3))
    replaced(program)
    assert report(program).in_force.source == "File"
    assert in_force(program, 3)


def test_a_half_written_config_is_named_and_the_last_good_one_stays(keeper: Keeper, tmp_path: Path) -> None:
    program, volume = started(keeper, tmp_path)
    whole = pod_config.encode(config(generation=2, model="other"))
    volume.write(configured(config()))
    until("the first is in force", lambda: in_force(program, 1))
    volume.write({CONFIG: whole[: len(whole) // 2]})
    until("it is named", lambda: report(program).rejected is not None)
    rejected = report(program).rejected
    assert rejected is not None
    assert (rejected.reason, rejected.generation, in_force(program, 1)) == ("InvalidConfig", 0, True)
    assert 'kvquota_documents_rejected_total{reason="InvalidConfig"} 1.0' in program.metrics
    volume.write({CONFIG: whole})
    until("it is in force", lambda: in_force(program, 2))
    assert report(program).rejected is None


def test_without_a_config_the_policy_decides_until_a_sync_brings_one(keeper: Keeper, tmp_path: Path) -> None:
    ask = chat(max_tokens=1)
    program, _ = started(keeper, tmp_path, policy="Open")
    assert send(f"{program.url}/v1/chat/completions", ask)[0] == 200
    closed_folder = tmp_path / "closed"
    closed_folder.mkdir()
    closed, _ = started(keeper, closed_folder)
    status, body = send(f"{closed.url}/v1/chat/completions", ask, **AUTHORIZED)
    assert (status, json.loads(body)["error"]["code"]) == (503, "not_configured")
    for each in (program, closed):
        assert send(f"{each.admin_url}/v1/sync", usage.encode(sync_request(config(), identity())), **BEARER)[0] == 200
        assert send(f"{each.url}/v1/chat/completions", ask)[0] == 401
        assert send(f"{each.url}/v1/chat/completions", ask, **AUTHORIZED)[0] == 200


def test_what_the_channel_brought_outlives_the_child_that_got_it(keeper: Keeper, tmp_path: Path) -> None:
    program, volume = started(keeper, tmp_path)
    volume.write(configured(config(generation=2)))
    until("the file's is in force", lambda: in_force(program, 2))
    hard = config(share(SEARCH, soft=0, hard=3), generation=7)
    assert send(f"{program.admin_url}/v1/sync", usage.encode(sync_request(hard)), **BEARER)[0] == 200
    for _ in range(2):
        replaced(program)
        assert (report(program).in_force.source, in_force(program, 7)) == ("Channel", True)
        assert report(program).rejected is None
        assert send(f"{program.url}/v1/chat/completions", chat(max_tokens=600), **AUTHORIZED)[0] == 400
    volume.write(configured(config(generation=8)))
    until("the newer file is in force", lambda: in_force(program, 8))


def _pause() -> None:
    """Some looks at the files."""
    time.sleep(0.5)
