"""The sidecar and the real vLLM when one of them starts anew, and what the engine's scheduler makes of priorities.

The engine is one of these tests' own: they end it. It runs with the scheduling policy that the injector sets.
"""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvquota_api import usage
from kvquota_api.usage import UsageReport
from sidecar_on_vllm import plan_of
from sidecar_program import (
    AUTHORIZED,
    Program,
    begun_stream,
    files_of,
    mounted,
    replaced,
    rest_of,
    send,
    start,
    until,
)
from sidecar_rig import BATCH, KEYS, SEARCH, TOKEN, chat, config, share
from testcluster.processes import Keeper
from testengine.vllm import VllmArguments, VllmEngine

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

CHAT = "/v1/chat/completions"
QUICK = ("--lame-duck-seconds", "0", "--drain-seconds", "0", "--sample-seconds", "0.1")
LONG = 1800  # tokens
HARD = 200  # blocks: three of the longest requests
AT_A_TIME = 3  # requests that the engine runs; others wait in it


@pytest.fixture(scope="module")
def own_vllm() -> Iterator[VllmEngine]:
    """Of these tests alone."""
    with VllmEngine(
        VllmArguments(extra=("--scheduling-policy", "priority", "--max-num-seqs", str(AT_A_TIME)))
    ) as engine:
        yield engine


@pytest.fixture
def program(own_vllm: VllmEngine, keeper: Keeper, tmp_path: Path) -> Program:
    """A ready sidecar before it."""
    wanted = config(
        share(SEARCH, soft=100, hard=HARD), share(BATCH, soft=0, hard=HARD), kv=plan_of(own_vllm.under_test)
    )
    where = own_vllm.under_test.base_url
    begun = start(keeper, mounted(tmp_path, wanted), "--engine", where, *files_of(tmp_path), *QUICK)
    until("it is ready", lambda: is_ready(begun))
    return begun


def is_ready(program: Program) -> bool:
    return send(f"{program.admin_url}/readyz")[0] == 200


def report(program: Program) -> UsageReport:
    return usage.decode_report(send(f"{program.admin_url}/v1/usage", Authorization=f"Bearer {TOKEN}")[1])


def reserved(program: Program) -> int:
    return sum(each.reserved for each in report(program).tenants)


def used(program: Program) -> int:
    return report(program).engine.used_blocks or 0


def unattributed(program: Program) -> int:
    pool = report(program).pool
    return 0 if pool is None else pool.unattributed


def is_idle(program: Program) -> bool:
    engine = report(program).engine
    return (engine.used_blocks, engine.running, engine.waiting) == (0, 0, 0)


def test_a_child_killed_before_a_busy_engine_lets_nobody_over_hard_and_refuses_nobody_wrongly(
    own_vllm: VllmEngine, program: Program
) -> None:
    """What the first child's clients left in the engine is charged to nobody, and the engine is done with it soon."""
    with ExitStack() as clients:
        for _ in range(AT_A_TIME):
            clients.enter_context(begun_stream(program, LONG))
        until("the engine is busy", lambda: used(program) > 10)
        assert 0 < reserved(program) <= HARD
        replaced(program)
        assert reserved(program) == 0
        until("the old work is gone from the engine", lambda: unattributed(program) == 0 and is_idle(program))
    with ExitStack() as clients:
        for _ in range(AT_A_TIME):
            clients.enter_context(begun_stream(program, LONG))
        until("the engine is busy", lambda: used(program) > 10)
        assert used(program) <= HARD
        assert send(f"{program.url}{CHAT}", chat(max_tokens=LONG), **AUTHORIZED)[0] == 429
    until("nothing is held", lambda: reserved(program) == 0 and is_idle(program))
    assert len(program.events("child_ended")) == 1


def test_an_engine_told_to_leave_gives_up_its_streams_and_the_one_after_it_is_found_and_learnt(
    own_vllm: VllmEngine, program: Program
) -> None:
    before = report(program).started_at
    with begun_stream(program, LONG) as streamed:
        until("it works", lambda: report(program).engine.running == 1)
        own_vllm.end(signal.SIGTERM)
        rest = rest_of(streamed)
    assert b"engine_error" in rest
    assert b"[DONE]" not in rest
    until("it is released", lambda: reserved(program) == 0)
    until("it is not ready", lambda: not is_ready(program))
    refused, body = send(f"{program.url}{CHAT}", chat(max_tokens=2), **AUTHORIZED)
    assert (refused, json.loads(body)["error"]["code"]) == (502, "engine_error")
    own_vllm.start()
    until("it is ready", lambda: is_ready(program))
    until("it is seen", lambda: is_idle(program))
    assert report(program).engine.blocks == own_vllm.under_test.blocks
    assert send(f"{program.url}{CHAT}", chat(max_tokens=2), **AUTHORIZED)[0] == 200
    until("it is released", lambda: reserved(program) == 0)
    assert (report(program).started_at, program.events("child_ended")) == (before, [])


def test_an_engine_that_is_killed_takes_its_requests_along_and_what_they_held(
    own_vllm: VllmEngine, program: Program
) -> None:
    with begun_stream(program, LONG) as streamed:
        until("it works", lambda: report(program).engine.running == 1)
        own_vllm.end(signal.SIGKILL)
        rest = rest_of(streamed)
    assert b"[DONE]" not in rest
    until("it is released", lambda: reserved(program) == 0)
    until("it is not ready", lambda: not is_ready(program))
    own_vllm.start()
    until("it is ready", lambda: is_ready(program))
    assert send(f"{program.url}{CHAT}", chat(max_tokens=2), **AUTHORIZED)[0] == 200
    until("nothing is held", lambda: reserved(program) == 0 and is_idle(program))


def test_the_engine_does_guaranteed_work_first_and_else_what_came_first(program: Program) -> None:
    """All have the same size, and the engine is full when they come."""
    done: list[str] = []

    def ask(name: str, tenant: str, tokens: int) -> None:
        body = chat(max_tokens=tokens, ignore_eos=True)
        assert send(f"{program.url}{CHAT}", body, Authorization=f"Bearer {KEYS[tenant]}")[0] == 200
        done.append(name)

    def comes(name: str, tenant: str, tokens: int, waiting: int) -> None:
        asked.append(pool.submit(ask, name, tenant, tokens))
        until(f"{name} is in the engine", lambda: report(program).engine.waiting == waiting)

    asked: list[Future[None]] = []
    with ThreadPoolExecutor(8) as pool:
        asked += [pool.submit(ask, f"before {at}", BATCH, 400 + 400 * at) for at in range(AT_A_TIME)]
        until("the engine is full", lambda: report(program).engine.running == AT_A_TIME)
        comes("first", BATCH, 200, waiting=1)
        comes("second", BATCH, 200, waiting=2)
        comes("guaranteed", SEARCH, 200, waiting=3)
        for each in asked:
            each.result()
    assert [name for name in done if not name.startswith("before")] == ["guaranteed", "first", "second"]
