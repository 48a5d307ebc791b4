"""Connections that only sit there, on the program under a limit on open files: nobody is kept out by them."""

import contextlib
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sidecar_program import AUTHORIZED, Program, engine, files_of, mounted, send, start, until
from sidecar_rig import chat, post
from testcluster import certificates
from testcluster.processes import Keeper

PROBES = ("/healthz", "/engine/health")


def limited(keeper: Keeper, folder: Path, soft: int, hard: int, *flags: str) -> Program:
    """A sidecar that was started under these limits."""
    given = ("--engine", engine(keeper, folder), *files_of(mounted(folder)), "--lame-duck-seconds", "0", *flags)
    return start(keeper, folder, *given, before=("prlimit", f"--nofile={soft}:{hard}", "--"))


def limits(pid: int) -> tuple[int, int]:
    """Of its open files, soft and hard."""
    (line,) = [each for each in Path(f"/proc/{pid}/limits").read_text().splitlines() if each.startswith("Max open")]
    soft, hard = line.split()[3:5]
    return int(soft), int(hard)


@contextlib.contextmanager
def flood(url: str, count: int, say: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections from another address than the probes', each of which has sent `say` and sits there."""
    where, sitting = urlsplit(url), []
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            client = stack.enter_context(socket.socket())
            client.bind(("127.9.9.9", 0))
            client.settimeout(20.0)
            client.connect((where.hostname, where.port))
            if say:
                client.sendall(say)
            sitting.append(client)
        yield sitting


def probed(program: Program) -> list[int]:
    return [send(f"{program.admin_url}{path}")[0] for path in PROBES]


def answered(program: Program) -> int:
    return send(f"{program.url}/v1/chat/completions", chat(max_tokens=1), **AUTHORIZED)[0]


def test_the_soft_limit_is_raised_and_what_it_allows_is_taken_and_told(keeper: Keeper, tmp_path: Path) -> None:
    program = limited(keeper, tmp_path, 256, 4096)
    told = program.event("connections_limited")
    assert {name: told[name] for name in ("wanted", "taken", "openFiles")} == {
        "wanted": 8192,
        "taken": (4096 - 320 - 512) // 2,
        "openFiles": 4096,
    }
    assert limits(program.pid) == limits(program.child()) == (4096, 4096)


def test_where_the_limit_is_enough_nothing_is_told(keeper: Keeper, tmp_path: Path) -> None:
    program = limited(keeper, tmp_path, 1024, 4096, "--max-connections", "1000")
    assert answered(program) == 200
    assert program.events("connections_limited") == []


@pytest.mark.parametrize("say", [b"", b"POST /v1/chat"], ids=["silent", "in the middle of a head"])
def test_connections_that_sit_on_the_traffic_port_break_no_probe_and_keep_nobody_out(
    keeper: Keeper, tmp_path: Path, say: bytes
) -> None:
    program = limited(keeper, tmp_path, 256, 256)
    with flood(program.url, 600, say):
        for _ in range(5):
            assert probed(program) == [200, 200]
            assert answered(program) == 200
        told = program.event("connections_full")
        assert (told["port"], told["most"]) == ("traffic", (256 - 128 - 32) // 2)
    made_room = "kvquota_client_connections_made_room_total"
    assert [line for line in program.metrics if line.startswith(made_room) and float(line.split()[1]) > 400]


@pytest.mark.parametrize("say", [b"", b"GET /healthz"], ids=["silent", "in the middle of a head"])
def test_connections_that_sit_on_the_admin_port_break_no_probe(keeper: Keeper, tmp_path: Path, say: bytes) -> None:
    program = limited(keeper, tmp_path, 1024, 1024)
    with flood(program.admin_url, 400, say):
        for _ in range(5):
            assert probed(program) == [200, 200]
        assert program.event("connections_full")["port"] == "admin"


def test_connections_that_sit_on_a_tls_port_before_their_handshake_do_neither(keeper: Keeper, tmp_path: Path) -> None:
    made = certificates.make(tmp_path / "tls", names=("IP:127.0.0.1",))
    trusting = ssl.create_default_context(cafile=made.ca)
    flags = ("--tls-cert", str(made.server), "--tls-key", str(made.server_key))
    program = limited(keeper, tmp_path, 256, 256, *flags)
    where, headers = urlsplit(program.url), {**AUTHORIZED, "Content-Type": "application/json"}
    with flood(program.url, 600):
        for _ in range(5):
            assert probed(program) == [200, 200]
            client = HTTPSConnection(where.hostname or "", where.port, context=trusting, timeout=20.0)
            client.request("POST", "/v1/chat/completions", chat(max_tokens=1), headers)
            assert client.getresponse().status == 200
            client.close()
        assert program.event("connections_full")["port"] == "traffic"
    assert program.events("descriptors_used_up") == []


def test_streams_take_two_descriptors_and_what_is_too_much_is_closed_while_probes_go_on(
    keeper: Keeper, tmp_path: Path
) -> None:
    program = limited(keeper, tmp_path, 256, 256)
    long = post(chat(stream=True, max_tokens=10, ignore_eos=True))
    with flood(program.url, 200, long):
        until("some run", lambda: any("requests_running" in each and " 0.0" not in each for each in program.metrics))
        for _ in range(5):
            assert probed(program) == [200, 200]
            time.sleep(0.05)
    until("nothing runs", lambda: "kvquota_requests_running 0.0" in program.metrics)
    assert answered(program) == 200
    assert program.events("descriptors_used_up") == []


@pytest.mark.parametrize(
    ("program", "needs"),
    [
        pytest.param(("kvquota_sidecar",), 64, id="the sidecar"),
        pytest.param(("kvquota_cli", "serve", "--manifests", ".", "--engine", "http://127.0.0.1:9"), 64, id="serve"),
        pytest.param(("kvquota_cli", "demo"), 128, id="the demo"),
    ],
)
def test_with_too_few_to_run_at_all_it_says_how_many_it_needs(program: tuple[str, ...], needs: int) -> None:
    argv = ["prlimit", "--nofile=40:40", "--", sys.executable, "-m", *program]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    told = f": this program may open 40 files, and needs {needs}: raise the limit (ulimit -n 1024)\n"
    assert (done.returncode, done.stderr.partition(":")[2]) == (2, told[1:])
