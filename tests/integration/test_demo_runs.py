"""`kvquota demo` as a person starts it: it shows what it says, on any engine, and leaves nothing behind."""

import asyncio
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvquota_fakeengine.misbehaviour import Misbehaviour
from kvquota_fakeengine.server import FakeEngineServer
from kvquota_fakeengine.settings import EngineSettings
from testcluster.apiserver import ApiServer
from testengine.client import EngineClient

DEADLINE_S = 120.0
HELD = [
    "steady was answered in both acts",
    "steady was never refused",
    "flood was refused where it would have passed its hard quota",
    "flood was served within its quota all the same",
    "nothing leaked: ledger and engine are back at 0",
]


async def started(*arguments: str) -> asyncio.subprocess.Process:
    heeding = ["env", "--default-signal=INT"]  # a shell's background jobs ignore Ctrl-C, and so would what they start
    command = [*heeding, sys.executable, "-m", "kvquota_cli", "demo", "--plain", *arguments]
    return await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "120"},
    )


async def demo(*arguments: str) -> tuple[int | None, list[str], str]:
    """Exit code, lines of standard output, standard error."""
    return await ended(await started(*arguments))


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, list[str], str]:
    """The same of one that runs: what it still says, until it ends."""
    async with asyncio.timeout(DEADLINE_S):
        out, err = await process.communicate()
    return process.returncode, out.decode().splitlines(), err.decode()


def tables(lines: Sequence[str]) -> list[dict[str, list[str]]]:
    """USED and INFLIGHT by tenant of every table that was printed."""
    printed: list[dict[str, list[str]]] = []
    for line in lines:
        if line.startswith("NAME "):
            printed.append({})
        if printed and re.match(r"(flood|steady) +(flood|steady) +demo ", line):
            printed[-1][line.split()[0]] = line.split()[5:7]
    return printed


def held(lines: Sequence[str]) -> list[str]:
    return [line.removeprefix("  held    ") for line in lines if line.startswith("  held    ")]


def failed(lines: Sequence[str]) -> list[str]:
    return [line.removeprefix("FAILED    ") for line in lines if line.startswith("FAILED    ")]


async def test_it_holds_with_nothing_but_this_program() -> None:
    code, lines, said = await demo("--seconds", "10")
    assert (code, held(lines), said) == (0, HELD, "")
    assert "NAME TENANT POOL SOFT HARD USED INFLIGHT REJECTED-10M EVICTED-10M STATE AGE" in [
        " ".join(line.split()) for line in lines
    ]
    *acts, last = tables(lines)
    assert [each["flood"] for each in acts if "0" in each["flood"]] == []
    assert (len(acts) >= 2, last) == (True, {"flood": ["0", "0"], "steady": ["0", "0"]})
    assert ("", "") not in itertools.pairwise(lines)
    (steady,) = [line for line in lines if re.match(r"steady +[0-9]+ sent", line)]
    assert ", 0 refused" in steady
    assert any(
        re.match(r' +"Tenant demo/flood holds [0-9,]+ tokens of KV cache, its hard quota is 8,192,', line)
        for line in lines
    )
    assert "after     ledger 0 blocks, engine 0 blocks, 0 requests in the engine" in lines


async def test_it_holds_on_an_engine_of_another_size_that_is_given() -> None:
    settings = EngineSettings(model="other", block_tokens=128, blocks=257, max_model_len=8192, decode_rate=100.0)
    async with FakeEngineServer(settings) as engine:
        code, lines, said = await demo("--seconds", "10", "--engine", engine.base_url)
    assert (code, held(lines), said) == (0, HELD, "")
    assert f"other at {engine.base_url}, with a KV cache of 32,768 tokens" in " ".join(lines)


@pytest.mark.engine
async def test_it_holds_on_the_real_vllm_and_leaves_it_idle(vllm_client: EngineClient) -> None:
    engine = vllm_client.engine
    before = (await vllm_client.readings()).work
    code, lines, said = await demo("--seconds", "24", "--engine", engine.base_url)
    assert (code, held(lines), failed(lines), said) == (0, HELD, [], ""), lines
    assert f"tiny at {engine.base_url}, with a KV cache of 16,352 tokens" in " ".join(lines)
    assert "after     ledger 0 blocks, engine 0 blocks, 0 requests in the engine" in lines
    after = await vllm_client.readings()
    assert (after.work - before).finished > 0
    assert (vllm_client.blocks_of(after), after.value("vllm:num_requests_running")) == (0, 0)


async def test_it_does_not_hold_when_the_engine_fails_the_polite_tenant() -> None:
    settings = EngineSettings(model="other", blocks=1025, decode_rate=100.0)
    async with FakeEngineServer(settings) as engine:
        process = await started("--seconds", "10", "--engine", engine.base_url)
        await heard(process, "Act 1")
        engine.later(1.0, Misbehaviour(refuse_connections=True))
        engine.later(3.0, Misbehaviour())
        code, lines, _ = await ended(process)
    assert code == 1
    assert "steady was never refused" in failed(lines)
    assert lines[-1] == "It did NOT hold: see what FAILED above."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param(["--seconds", "1"], "--seconds is a number from 6 to 600", id="too short"),
        pytest.param(["--seconds", "nan"], "--seconds is a number from 6 to 600", id="no number"),
        pytest.param(["--engine", "nowhere"], "--engine is http://HOST:PORT, not 'nowhere'", id="no URL"),
        pytest.param(
            ["--engine", "http://127.0.0.1:9"], "127.0.0.1:9 does not answer .*: start it, or", id="no engine"
        ),
        pytest.param(
            ["--kubeconfig", "/absent"], "--kubeconfig /absent: cannot be read: .*; name the file", id="no kubeconfig"
        ),
    ],
)
async def test_what_cannot_begin_ends_with_one_sentence(arguments: list[str], sentence: str) -> None:
    code, _, said = await demo(*arguments)
    assert code == 2
    assert re.search(sentence, said)
    assert said.count("\n") == 1


async def test_an_engine_that_is_too_small_is_refused() -> None:
    async with FakeEngineServer(EngineSettings(blocks=200, max_model_len=1024)) as engine:
        code, _, said = await demo("--engine", engine.base_url)
    assert (code, said.count("\n")) == (2, 1)
    assert "too few to show anything" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_in_order(number: signal.Signals) -> None:
    process = await started()
    await heard(process, "Act 1")
    process.send_signal(number)
    async with asyncio.timeout(DEADLINE_S):
        _, said = await process.communicate()
    assert (process.returncode, said.decode()) == (1, "kvquota: stopped before the end, and everything put away\n")


async def heard(process: asyncio.subprocess.Process, begin: str) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        while line := await process.stdout.readline():
            if line.decode().startswith(begin):
                return
    pytest.fail(f"it ended without saying {begin}")


def left_by_demo(server: ApiServer) -> list[str]:
    """What is in namespaces of the demonstration that are not on their way out, and whatever is in any of them."""
    namespaces = json.loads(server.kubectl("get", "namespaces", "-o", "json"))["items"]
    mine = [each for each in namespaces if each["metadata"]["name"].startswith("kvquota-demo-")]
    left = [each["metadata"]["name"] for each in mine if each["status"]["phase"] != "Terminating"]
    kinds = "pods,secrets,configmaps,events,serviceaccounts"
    for each in mine:
        name = each["metadata"]["name"]
        left += server.kubectl("get", kinds, "--namespace", name, "-o", "name").split()
    return left


def definitions(server: ApiServer) -> set[str]:
    return set(server.kubectl("get", "customresourcedefinitions", "-o", "name").split())


@pytest.mark.apiserver
async def test_it_holds_through_an_api_server_and_cleans_up(apiserver: ApiServer) -> None:
    before = definitions(apiserver)
    code, lines, said = await demo("--seconds", "10", "--kubeconfig", str(apiserver.kubeconfig))
    assert (code, held(lines), said) == (0, HELD, "")
    assert re.search(r"through the API server of .* in the new namespace kvquota-demo-[0-9a-f]{6}", " ".join(lines))
    rows = [line.split() for line in lines if line.startswith("flood ")]
    assert ["flood", "flood", "demo", "832", "8192"] in [row[:5] for row in rows]
    assert (left_by_demo(apiserver), definitions(apiserver)) == ([], before)


@pytest.mark.apiserver
async def test_it_cleans_up_after_a_signal_too(apiserver: ApiServer) -> None:
    before = definitions(apiserver)
    process = await started("--kubeconfig", str(apiserver.kubeconfig))
    await heard(process, "Act 1")
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(DEADLINE_S):
        _, said = await process.communicate()
    assert (process.returncode, said.decode()) == (1, "kvquota: stopped before the end, and everything put away\n")
    assert (left_by_demo(apiserver), definitions(apiserver)) == ([], before)


@pytest.mark.apiserver
async def test_an_api_server_that_refuses_is_told_in_its_own_words(apiserver: ApiServer, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(apiserver.kubeconfig.read_text().replace(apiserver.token, "nobody"))
    code, _, said = await demo("--kubeconfig", str(file))
    assert (code, said.count("\n")) == (1, 1)
    assert re.match(r"kvquota: the API server refused GET /apis/.*: Unauthorized", said)
