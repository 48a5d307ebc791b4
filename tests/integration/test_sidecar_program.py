"""The sidecar as a program: flags, environment, signals, exit codes, and what it logs."""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvquota_api import pod_config
from sidecar_rig import KEYS, SEARCH, TOKEN, chat, config, identity
from testcluster.processes import Keeper, Server, wait_until

DEADLINE_SECONDS = 30.0


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    keeper = Keeper()
    yield keeper
    keeper.stop()


def lines(server: Server) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]


def event(server: Server, name: str) -> dict[str, Any]:
    """The first log line of a kind, once it is there."""

    def found() -> bool:
        return any(line["event"] == name for line in lines(server)) or not server.alive

    assert wait_until(found, timeout_s=DEADLINE_SECONDS)
    return next(line for line in lines(server) if line["event"] == name)


def mounted(folder: Path) -> Path:
    (folder / "identity").mkdir()
    (folder / "config.json").write_bytes(pod_config.encode(config()))
    (folder / "identity" / "identity.json").write_bytes(pod_config.encode(identity()))
    (folder / "identity" / "token").write_text(TOKEN)
    return folder


def start(keeper: Keeper, folder: Path, *flags: str, **environ: str) -> Server:
    ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    argv = [sys.executable, "-m", "kvquota_sidecar", *ports, *flags]
    return keeper.start("sidecar", argv, folder / "sidecar.log", environ={**os.environ, **environ})


def engine(keeper: Keeper, folder: Path, *flags: str) -> str:
    argv = [sys.executable, "-m", "kvquota_fakeengine", "--port", "0", "--model", "tiny", *flags]
    server = keeper.start("engine", argv, folder / "engine.log")
    assert wait_until(lambda: "serving" in server.log.read_text(), timeout_s=DEADLINE_SECONDS)
    return server.log.read_text().split()[-1]


def send(url: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_program_of_flags_serves_logs_in_json_and_leaves_on_sigterm_with_code_0(
    keeper: Keeper, tmp_path: Path
) -> None:
    folder = mounted(tmp_path)
    files = ["--config", str(folder / "config.json"), "--identity", str(folder / "identity")]
    sidecar = start(keeper, folder, "--engine", engine(keeper, folder), *files, "--lame-duck-seconds", "0")
    url = f"http://{event(sidecar, 'serving')['traffic']}"
    secret = "a secret of the prompt"
    assert send(f"{url}/v1/chat/completions", chat(text=secret), Authorization=f"Bearer {KEYS[SEARCH]}")[0] == 200
    assert (
        send(
            f"{url}/v1/chat/completions?key={KEYS[SEARCH]}", chat(text=secret), Authorization="Bearer x" + KEYS[SEARCH]
        )[0]
        == 401
    )
    sidecar.process.send_signal(signal.SIGTERM)
    assert sidecar.process.wait(DEADLINE_SECONDS) == 0
    assert [line["event"] for line in lines(sidecar)] == ["configured", "serving", "refused", "draining", "stopped"]
    assert lines(sidecar)[2] == {
        "at": lines(sidecar)[2]["at"],
        "event": "refused",
        "route": "/v1/chat/completions",
        "code": "unknown_tenant",
        "status": 401,
    }
    written = sidecar.log.read_text()
    assert not [each for each in (secret, KEYS[SEARCH], TOKEN) if each in written]


def test_a_program_of_environment_variables_waits_for_its_streams(keeper: Keeper, tmp_path: Path) -> None:
    folder = mounted(tmp_path)
    environ = {
        "KVQUOTA_ENGINE": engine(keeper, folder, "--decode-rate", "40"),
        "KVQUOTA_CONFIG": str(folder / "config.json"),
        "KVQUOTA_IDENTITY": str(folder / "identity"),
        "KVQUOTA_LAME_DUCK_SECONDS": "0.2",
        "KVQUOTA_DRAIN_SECONDS": "25",
    }
    sidecar = start(keeper, folder, **environ)
    url = f"http://{event(sidecar, 'serving')['traffic']}"
    got: list[tuple[int, bytes]] = []
    body = chat(stream=True, max_tokens=60, ignore_eos=True)
    asking = threading.Thread(
        target=lambda: got.append(send(f"{url}/v1/chat/completions", body, Authorization=f"Bearer {KEYS[SEARCH]}"))
    )
    asking.start()
    admin = f"http://{event(sidecar, 'serving')['admin']}"
    running = lambda: b"kvquota_requests_running 1.0" in send(f"{admin}/metrics")[1]  # noqa: E731
    assert wait_until(running, timeout_s=DEADLINE_SECONDS)
    sidecar.process.send_signal(signal.SIGTERM)
    assert sidecar.process.wait(DEADLINE_SECONDS) == 0
    asking.join()
    assert got[0][0] == 200
    assert got[0][1].endswith(b"data: [DONE]\n\n")
    assert got[0][1].count(b'"content"') == 61


def test_a_second_sigterm_does_not_wait(keeper: Keeper, tmp_path: Path) -> None:
    sidecar = start(keeper, tmp_path, "--lame-duck-seconds", "1000", "--drain-seconds", "1000")
    event(sidecar, "serving")
    sidecar.process.send_signal(signal.SIGTERM)
    event(sidecar, "draining")
    sidecar.process.send_signal(signal.SIGTERM)
    assert sidecar.process.wait(DEADLINE_SECONDS) == 0


BAD = {
    "a port that is none": (["--listen", "0.0.0.0:http"], "--listen"),
    "an engine over TLS": (["--engine", "https://127.0.0.1:1"], "--engine"),
    "a policy that is none": (["--failure-policy", "closed"], "Closed or Open"),
    "a flag that nobody knows": (["--nonsense"], "--help"),
    "seconds that are none": (["--drain-seconds", "soon"], "--drain-seconds"),
}


@pytest.mark.parametrize(("flags", "named"), BAD.values(), ids=BAD)
def test_a_bad_setting_is_one_sentence_and_code_2(flags: list[str], named: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvquota_sidecar", *flags], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert named in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_port_that_is_taken_is_one_sentence_and_code_2(keeper: Keeper, tmp_path: Path) -> None:
    first = start(keeper, tmp_path)
    taken = event(first, "serving")["traffic"]
    argv = [sys.executable, "-m", "kvquota_sidecar", "--listen", taken, "--admin", "127.0.0.1:0"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Is another program on this port?" in done.stderr
    assert len(done.stderr.splitlines()) == 1
