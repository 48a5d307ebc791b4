"""Who reads the log may stall or go: traffic, the drain and the exit code are as ever."""

import fcntl
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from sidecar_program import AUTHORIZED, Program, children, engine, files_of, mounted, send, start, until
from sidecar_rig import chat
from testcluster.processes import Keeper

REFUSED = 60  # lines of about 200 bytes: more than a pipe of 4 KiB holds


@dataclass(slots=True)
class Piped:
    """A sidecar whose standard output is a pipe of 4 KiB that this test reads, as far as it likes."""

    program: Program
    reader: int
    url: str
    lines: list[dict[str, object]]

    def ask(self) -> int:
        return send(f"{self.url}/v1/chat/completions", chat(max_tokens=4), **AUTHORIZED)[0]

    def be_refused(self) -> None:
        for _ in range(REFUSED):
            assert send(f"{self.url}/v1/chat/completions", chat())[0] == 401

    def read(self) -> None:
        """Read all that is there, and hear more."""
        for line in read_lines(self.reader):
            self.lines.append(json.loads(line))


def read_lines(reader: int) -> list[bytes]:
    """The lines that are in the pipe; it is read to the end of one."""
    found = b""
    while not found.endswith(b"\n"):
        found += os.read(reader, 65536)
    return found.splitlines()


@pytest.fixture
def piped(keeper: Keeper, tmp_path: Path) -> Piped:
    folder, fifo = tmp_path, tmp_path / "stdout"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDWR)  # so that the program's end can be opened
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    behind = engine(keeper, folder, "--decode-rate", "200")
    into_the_pipe = ("sh", "-c", 'exec "$@" >"$0"', str(fifo))
    flags = ("--engine", behind, *files_of(mounted(folder)), "--lame-duck-seconds", "0")
    program = start(keeper, folder, *flags, before=into_the_pipe)
    lines: list[dict[str, object]] = []
    while "serving" not in [line["event"] for line in lines]:
        lines += [json.loads(line) for line in read_lines(reader)]
    only_reader = os.open(fifo, os.O_RDONLY)
    os.close(reader)
    return Piped(program, only_reader, f"http://{lines[-1]['traffic']}", lines)


def test_a_reader_that_stalls_stops_no_traffic_and_no_drain(piped: Piped) -> None:
    piped.be_refused()
    assert piped.ask() == 200
    piped.program.signal(signal.SIGTERM)
    assert piped.program.ended() == 0


def test_a_reader_that_stalls_stops_no_supervisor(piped: Piped) -> None:
    piped.be_refused()
    for _ in range(2):
        before = piped.program.child()
        os.kill(before, signal.SIGKILL)
        until("there is another child", lambda before=before: children(piped.program.pid) not in ([], [before]))
        assert piped.ask() == 200
    piped.program.signal(signal.SIGTERM)
    assert piped.program.ended() == 0


def test_a_reader_that_is_gone_cuts_no_client_off_and_changes_no_exit_code(piped: Piped) -> None:
    os.close(piped.reader)
    piped.be_refused()
    assert piped.ask() == 200
    os.kill(piped.program.child(), signal.SIGKILL)
    assert piped.ask() == 200
    piped.program.signal(signal.SIGTERM)
    assert piped.program.ended() == 0
    assert "Error" not in piped.program.server.log.read_text()


def test_a_reader_that_goes_on_finds_every_line_in_order_and_the_last_ones(piped: Piped) -> None:
    piped.be_refused()
    piped.program.signal(signal.SIGTERM)
    while piped.lines[-1]["event"] != "stopped":
        piped.read()
    assert piped.program.ended() == 0
    events = [line["event"] for line in piped.lines]
    written = events.count("refused")
    left_out = sum(int(str(line.get("linesLeftOut", 0))) for line in piped.lines)
    assert written + left_out == REFUSED
    assert events == ["configured", "serving", *["refused"] * written, "draining", "stopped"]
    at = [float(str(line["at"])) for line in piped.lines]
    assert at == sorted(at)
