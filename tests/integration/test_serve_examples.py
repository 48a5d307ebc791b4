"""`kvquota serve` as a person starts it: the examples as they are, an engine, edits while it runs."""

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest

from kvquota_fakeengine.server import FakeEngineServer
from kvquota_fakeengine.settings import EngineSettings

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SEARCH = "kvq-7c1f4a2e9b6d4c0f8a3e5d7b1c9f2e4a6d8b0c3e5f7a9b1d3c5e7f90a2b4c6d8"
BATCH = "kvq-3e9a1c5f7b2d4e6a8c0f1b3d5e7a9c2f4b6d8e0a1c3f5b7d9e2a4c6f8b0d1e3f"
MODEL = "llama-3.1-8b-instruct"
DEADLINE_S = 30.0

# As large as the examples plan it; slow, so that what a test starts is still there when it looks.
ENGINE = EngineSettings(
    model=MODEL, blocks=18_432, max_model_len=32_768, decode_rate=20.0, prefill_rate=1e6, max_batched_tokens=65_536
)


@dataclass
class Serving:
    """A running `kvquota serve`."""

    process: asyncio.subprocess.Process
    url: str
    admin: str
    said: list[str] = field(default_factory=list)
    engine: FakeEngineServer | None = None

    async def heard(self, pattern: str) -> str:
        """The first line on stderr that has the pattern, when it comes."""
        return await soon(lambda: next((line for line in self.said if re.search(pattern, line)), None))


async def soon(find: Callable[[], Any]) -> Any:
    """What `find` gives once it gives something."""
    return await later(lambda: asyncio.sleep(0, find()), bool)


async def later(ask_once: Callable[[], Awaitable[Any]], good: Callable[[Any], bool]) -> Any:
    """The first answer that is good; asked again and again until the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            answer = await ask_once()
            if good(answer):
                return answer
            await asyncio.sleep(0.05)


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "kvquota_cli", "serve", *map(str, arguments)]


@asynccontextmanager
async def serving(manifests: Path, engine: str, *more: str) -> AsyncIterator[Serving]:
    where = ("--manifests", manifests, "--engine", engine, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    said: list[str] = []
    async with AsyncExitStack() as stack:
        left = stack.enter_context(TemporaryDirectory())  # what a killed process leaves goes with it
        process = await asyncio.create_subprocess_exec(
            *command(*where, *more),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "TMPDIR": left},
        )
        stack.push_async_callback(process.wait)
        stack.callback(lambda: process.returncode is None and process.kill())
        reading = asyncio.create_task(_listen(process, said))
        stack.push_async_callback(_cancelled, reading)
        assert process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            first = await process.stdout.readline()
        assert first, said
        places = json.loads(first)
        draining = asyncio.create_task(_drain(process.stdout))
        stack.push_async_callback(_cancelled, draining)
        yield Serving(process, f"http://{places['traffic']}", f"http://{places['admin']}", said)


async def _listen(process: asyncio.subprocess.Process, said: list[str]) -> None:
    assert process.stderr is not None
    while line := await process.stderr.readline():
        said.append(line.decode().rstrip())


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.read(65536):
        pass


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


@asynccontextmanager
async def both(manifests: Path, *more: str) -> AsyncIterator[Serving]:
    """An engine and `kvquota serve` before it, with quotas in force."""
    async with FakeEngineServer(ENGINE) as engine, serving(manifests, engine.base_url, *more) as served:
        await served.heard("quotas are in force")
        served.engine = engine
        yield served


async def ask(served: Serving, key: str, *, tokens: int = 20, limit: int = 2) -> tuple[int, Any, Any]:
    """Status, headers and body of a completion whose prompt has exactly `tokens` tokens."""
    body = {"model": MODEL, "prompt": [[7] * tokens], "max_tokens": limit}
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{served.url}/v1/completions", json=body, headers=headers) as answer,
    ):
        return answer.status, answer.headers, await answer.json()


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    """A copy of the examples, to be edited."""
    return shutil.copytree(EXAMPLES, tmp_path / "manifests")


def edit(file: Path, old: str, new: str) -> int:
    """Replace; the answer is the first line, from 1, that differs."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    return text[: text.index(old)].count("\n") + 1


async def test_the_examples_run_as_they_are_and_only_their_keys_are_let_in() -> None:
    async with both(EXAMPLES) as served:
        answers = [await ask(served, key) for key in (SEARCH, BATCH, "kvq-" + "0" * 64)]
        assert [status for status, _, _ in answers] == [200, 200, 401]
        assert answers[0][1]["x-kvquota-hard-tokens"] == "176928"
        assert answers[1][1]["x-kvquota-hard-tokens"] == "65536"
        assert answers[2][2]["error"]["code"] == "unknown_tenant"
        assert await served.heard("pool inference/llama-8b") == (
            f"kvquota serve: pool inference/llama-8b (model {MODEL}): the engine serves its model {MODEL}"
        )


async def test_what_would_pass_hard_is_refused_with_a_time_to_wait_and_a_sentence_to_act_on() -> None:
    """Five requests of 32,500 tokens fit into 176,928, the sixth does not, whichever it is."""
    async with both(EXAMPLES) as served, asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(ask(served, SEARCH, tokens=32_000, limit=500)) for _ in range(6)]
        done, running = await asyncio.wait(asked, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
        ((status, headers, body),) = [task.result() for task in done]
        assert (status, body["error"]["code"]) == (429, "tenant_kv_quota_exceeded")
        assert 1 <= int(headers["Retry-After"]) <= 60
        assert "its hard quota is 176,928" in body["error"]["message"]
        assert "Shorten the input by about 18,144 tokens, or wait for one of your 5 running" in body["error"]["message"]
        for task in running:
            task.cancel()


async def test_a_lowered_hard_holds_for_the_next_request_without_a_restart(manifests: Path) -> None:
    async with both(manifests) as served:
        assert (await ask(served, SEARCH, tokens=3_000))[0] == 200
        edit(manifests / "tenantquotas.yaml", "soft: {percent: 40}", "soft: {tokens: 800}")
        edit(manifests / "tenantquotas.yaml", "hard: {percent: 60}", "hard: {tokens: 1600}")
        status, headers, body = await later(lambda: ask(served, SEARCH, tokens=3_000), lambda answer: answer[0] != 200)
        assert (status, body["error"]["code"]) == (400, "request_exceeds_kv_quota")
        assert headers["x-kvquota-hard-tokens"] == "1600"
        assert (await ask(served, SEARCH, tokens=300))[0] == 200
        assert served.process.returncode is None


async def test_a_broken_edit_is_said_once_with_its_line_and_the_last_good_objects_stay(manifests: Path) -> None:
    async with both(manifests) as served:
        line = edit(manifests / "tenantquotas.yaml", "hard: {percent: 60}", "hard: {percent: 60")
        said = await served.heard("tenantquotas.yaml:[0-9]+: error: not valid YAML")
        await served.heard("its last good version stays in force")
        assert f"/tenantquotas.yaml:{line + 1}: error: not valid YAML: expected ',' or '}}'" in said
        assert (await ask(served, SEARCH))[1]["x-kvquota-hard-tokens"] == "176928"
        edit(manifests / "secrets.yaml", SEARCH, SEARCH[:-1] + "f")
        await served.heard("the manifests changed")
        await later(lambda: ask(served, SEARCH[:-1] + "f"), lambda answer: answer[0] == 200)
        assert len([line for line in served.said if "not valid YAML" in line]) == 1
        edit(manifests / "tenantquotas.yaml", "hard: {percent: 60", "hard: {percent: 60}")
        await served.heard("the manifests are all good again")


async def test_an_edit_that_a_cluster_would_refuse_is_said_with_its_field_and_changes_nothing(manifests: Path) -> None:
    async with both(manifests) as served:
        line = edit(manifests / "tenantquotas.yaml", "hard: {percent: 60}", "hard: {percent: 160}")
        said = await served.heard("spec.kv.hard.percent")
        assert f"tenantquotas.yaml:{line}: error: TenantQuota inference/search: spec.kv.hard.percent: " in said
        assert (await ask(served, SEARCH))[1]["x-kvquota-hard-tokens"] == "176928"


async def test_an_engine_that_is_down_at_the_start_is_waited_for(manifests: Path) -> None:
    async with FakeEngineServer(ENGINE) as engine:
        free = engine.base_url
    async with serving(manifests, free) as served:
        began = asyncio.get_running_loop().time()
        await served.heard("the engine does not answer yet .*: until it does, requests are answered with 502")
        await served.heard("it is the only pool that TenantQuotas refer to")
        await served.heard("quotas are in force")
        assert (await ask(served, SEARCH))[0] == 502
        down = await served.heard("EngineDown")
        assert asyncio.get_running_loop().time() - began >= 9  # ten, and a little passes until the first line is read
        assert down == (
            "kvquota serve: ModelPool inference/llama-8b: EngineDown: the engine has not answered for ten seconds or"
            " more, and clients get 502 engine_error: start it, look at its log, or correct --engine"
        )
        async with FakeEngineServer(ENGINE, port=int(free.rpartition(":")[2])):
            await served.heard("the engine answers now")
            assert (await ask(served, SEARCH))[0] == 200


async def test_what_is_no_engine_gets_a_warning_and_the_greeting_has_requests_that_run_as_printed() -> None:
    async with FakeEngineServer(ENGINE, control_port=0) as engine, serving(EXAMPLES, engine.control_url) as served:
        said = await served.heard("warning")
        assert said.endswith("answers /v1/models with 404: is this an engine? Check --engine")
        await served.heard(f"curl {served.url}/v1/usage -H 'Authorization: Bearer KEY'")
        await served.heard('"max_tokens": 16}\'$')


async def test_an_engine_that_serves_another_model_gets_a_warning() -> None:
    async with FakeEngineServer() as engine, serving(EXAMPLES, engine.base_url) as served:
        said = await served.heard("warning")
        assert "the engine serves fake, the pool llama-8b is for llama-3.1-8b-instruct" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_cleanly(number: signal.Signals) -> None:
    async with both(EXAMPLES) as served:
        served.process.send_signal(number)
        async with asyncio.timeout(DEADLINE_S):
            assert await served.process.wait() == 0
        assert not [line for line in served.said if "Traceback" in line]


async def test_a_second_signal_does_not_wait_for_running_requests() -> None:
    async with both(EXAMPLES, "--drain-seconds", "600") as served:
        running = asyncio.create_task(ask(served, SEARCH, limit=30_000))
        assert served.engine is not None
        await soon(served.engine.received.copy)
        served.process.send_signal(signal.SIGINT)
        await served.heard("leaving")
        served.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(DEADLINE_S):
            assert await served.process.wait() == 0
            await asyncio.wait({running})
        assert running.exception() is not None or running.result()[0] != 200


async def test_the_token_opens_the_admin_port_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    async with both(EXAMPLES, "--token-file", str(file)) as served, aiohttp.ClientSession() as session:
        assert file.stat().st_mode & 0o777 == 0o600
        await served.heard(rf"curl {served.admin}/v1/usage -H .*\$\(cat {file}\)")
        async with session.get(f"{served.admin}/v1/usage") as answer:
            assert answer.status == 401
        headers = {"Authorization": f"Bearer {file.read_text().strip()}"}
        async with session.get(f"{served.admin}/v1/usage", headers=headers) as answer:
            assert {each["id"] for each in (await answer.json())["tenants"]} == {"inference/search", "inference/batch"}


async def test_a_token_file_of_an_earlier_run_is_used_again_and_the_temporary_one_is_removed(tmp_path: Path) -> None:
    file, kept = tmp_path / "token", "0123456789abcdef" * 4 + "\n"
    file.write_text(kept)
    async with both(EXAMPLES, "--token-file", str(file)):
        assert file.read_text() == kept
    async with both(EXAMPLES) as served:
        temporary = (await served.heard("cat ")).rpartition("cat ")[2].removesuffix(')"')
        assert await asyncio.to_thread(Path(temporary).is_file)
        served.process.terminate()
        await served.process.wait()
    assert not await asyncio.to_thread(Path(temporary).parent.exists)


async def test_usr1_prints_the_tables_of_kubectl_get() -> None:
    async with both(EXAMPLES) as served:
        await ask(served, SEARCH)
        await soon(lambda: asked_for_tables(served))
        header = "NAME TENANT POOL SOFT HARD USED INFLIGHT REJECTED-10M EVICTED-10M STATE AGE"
        assert header in [" ".join(line.split()) for line in served.said]


def asked_for_tables(served: Serving) -> list[str]:
    os.kill(served.process.pid, signal.SIGUSR1)
    return [line for line in served.said if re.match(r"search +search +llama-8b +117952 +176928 ", line)]


async def ends(*arguments: str | Path) -> tuple[int | None, str]:
    """What becomes of it with no engine, whatever else listens on this machine."""
    apart = command("--engine", "http://127.0.0.1:9", *arguments)
    process = await asyncio.create_subprocess_exec(*apart, stderr=asyncio.subprocess.PIPE)
    async with asyncio.timeout(DEADLINE_S):
        _, said = await process.communicate()
    return process.returncode, said.decode()


def overcommitted(folder: Path) -> Path:
    edit(folder / "modelpool.yaml", "kvPool: {percent: 45}", "kvPool: {percent: 95}")
    return folder


def unreferred(folder: Path) -> Path:
    (folder / "tenantquotas.yaml").unlink()
    return folder


@pytest.mark.parametrize(
    ("prepare", "more", "code", "sentence"),
    [
        pytest.param(
            lambda _: Path("/absent"), [], 2, "cannot read /absent: .*; give --manifests a folder", id="no folder"
        ),
        pytest.param(
            overcommitted, [], 3, "inference/llama-8b cannot be planned: the parts of one card sum", id="no plan"
        ),
        pytest.param(
            unreferred, [], 2, "several pools: give --pool one of inference/llama-1b .*llama-8b", id="which pool"
        ),
        pytest.param(
            lambda folder: folder, ["--pool", "x"], 2, "no ModelPool x: give --pool one of", id="unknown pool"
        ),
        pytest.param(lambda folder: folder, ["--engine", "x"], 2, "--engine is http://HOST:PORT, not 'x'", id="no URL"),
    ],
)
async def test_what_cannot_begin_ends_with_one_sentence_and_a_code(
    prepare: Callable[[Path], Path], more: Sequence[str], code: int, sentence: str, manifests: Path
) -> None:
    returned, said = await ends(
        "--manifests", prepare(manifests), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *more
    )
    assert returned == code
    assert re.search(sentence, said.splitlines()[-1])
    assert "Traceback" not in said


async def test_a_port_that_is_taken_is_said() -> None:
    async with both(EXAMPLES) as served:
        taken = served.url.removeprefix("http://")
        returned, said = await ends("--manifests", EXAMPLES, "--listen", taken, "--admin", "127.0.0.1:0")
    assert returned == 2
    assert re.search(rf"kvquota: cannot listen on {taken}: Address already in use; give --listen another address", said)
