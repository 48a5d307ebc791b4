"""The sidecar as a program: flags, environment, signals, exit codes, and what it logs."""

import signal
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path

import pytest

from kvquota_sidecar import compiled
from sidecar_program import engine, files_of, mounted, send, start, until
from sidecar_rig import KEYS, SEARCH, TOKEN, chat
from testcluster.processes import Keeper


def test_a_program_of_flags_serves_logs_in_json_and_leaves_on_sigterm_with_code_0(
    keeper: Keeper, tmp_path: Path
) -> None:
    folder = mounted(tmp_path)
    behind = engine(keeper, folder)
    sidecar = start(keeper, folder, "--engine", behind, *files_of(folder), "--lame-duck-seconds", "0")
    url = sidecar.url
    secret = "a secret of the prompt"
    assert send(f"{url}/v1/chat/completions", chat(text=secret), Authorization=f"Bearer {KEYS[SEARCH]}")[0] == 200
    stranger = {"Authorization": f"Bearer x{KEYS[SEARCH]}", "X-Request-ID": "mine:7"}
    assert send(f"{url}/v1/chat/completions?key={KEYS[SEARCH]}", chat(text=secret), **stranger)[0] == 401
    sidecar.signal(signal.SIGTERM)
    assert sidecar.ended() == 0
    assert [line["event"] for line in sidecar.lines()] == ["configured", "serving", "refused", "draining", "stopped"]
    refused = sidecar.event("refused")
    assert refused == {
        "at": refused["at"],
        "event": "refused",
        "request": refused["request"],
        "clientRequest": "mine:7",
        "route": "/v1/chat/completions",
        "code": "unknown_tenant",
        "status": 401,
    }
    written = sidecar.server.log.read_text()
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
    url = sidecar.url
    got: list[tuple[int, bytes]] = []
    body = chat(stream=True, max_tokens=60, ignore_eos=True)
    asking = threading.Thread(
        target=lambda: got.append(send(f"{url}/v1/chat/completions", body, Authorization=f"Bearer {KEYS[SEARCH]}"))
    )
    asking.start()
    until("it runs", lambda: "kvquota_requests_running 1.0" in sidecar.metrics)
    sidecar.signal(signal.SIGTERM)
    assert sidecar.ended() == 0
    asking.join()
    assert got[0][0] == 200
    assert got[0][1].endswith(b"data: [DONE]\n\n")
    assert got[0][1].count(b'"content"') == 61


def test_a_second_sigterm_does_not_wait(keeper: Keeper, tmp_path: Path) -> None:
    sidecar = start(keeper, tmp_path, "--lame-duck-seconds", "1000", "--drain-seconds", "1000")
    sidecar.event("serving")
    sidecar.signal(signal.SIGTERM)
    sidecar.event("draining")
    sidecar.signal(signal.SIGTERM)
    assert sidecar.ended() == 0


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


def test_it_says_its_version() -> None:
    argv = [sys.executable, "-m", "kvquota_sidecar", "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    said = f"kvquota-sidecar {metadata.version('kvquota')} ({compiled.build()})\n"
    assert (done.returncode, done.stdout) == (0, said)


def test_at_the_start_it_says_where_it_looks_for_what_is_not_there_yet(keeper: Keeper, tmp_path: Path) -> None:
    (tmp_path / "identity").mkdir()
    (tmp_path / "identity" / "identity.json").write_text("{")
    sidecar = start(keeper, tmp_path, *files_of(tmp_path))
    config, identity = tmp_path / "config.json", tmp_path / "identity"
    assert (sidecar.event("serving")["config"], sidecar.event("serving")["identity"]) == (str(config), str(identity))
    then = " and no operator has called yet; until then failurePolicy Closed decides about every request"
    assert [sidecar.event("waiting", number)["message"] for number in (1, 2)] == [
        f"waiting for the config: {config} does not exist yet{then}",
        f"waiting for the identity: {identity / 'identity.json'} cannot be used{then}",
    ]
    status, body = send(f"{sidecar.url}/v1/chat/completions", chat())
    assert (status, b"whoever runs this cluster" in body) == (503, True)


def test_without_files_it_says_that_it_waits_for_the_operator(keeper: Keeper, tmp_path: Path) -> None:
    sidecar = start(keeper, tmp_path)
    said = "waiting for the config: no file was named and no operator has called yet"
    assert sidecar.event("waiting")["message"].startswith(f"{said};")


def test_a_refused_line_names_the_field_and_not_what_the_client_wrote(keeper: Keeper, tmp_path: Path) -> None:
    folder = mounted(tmp_path)
    sidecar = start(keeper, folder, *files_of(folder))
    url = f"{sidecar.url}/v1/chat/completions"
    for body in (b'{"messages": 1}', b'{"my secret": 1, "my secret": 2}'):
        assert send(url, body, Authorization=f"Bearer {KEYS[SEARCH]}")[0] == 400
    assert [sidecar.event("refused", number).get("param") for number in (1, 2)] == ["messages", None]
    assert "my secret" not in sidecar.server.log.read_text()


def test_a_port_that_is_taken_is_one_sentence_and_code_2(keeper: Keeper, tmp_path: Path) -> None:
    first = start(keeper, tmp_path)
    taken = first.event("serving")["traffic"]
    argv = [sys.executable, "-m", "kvquota_sidecar", "--listen", taken, "--admin", "127.0.0.1:0"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Is another program on this port?" in done.stderr
    assert len(done.stderr.splitlines()) == 1
