"""Where the log goes: nobody waits for its reader, whatever that does."""

import fcntl
import io
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from kvquota_sidecar import supervisor
from kvquota_sidecar.supervisor import HELD_BYTES, Outlet
from kvquota_sidecar.telemetry.journal import LINES_PER_SECOND, Journal
from sidecar_rig import ManualClock

DEADLINE_SECONDS = 20.0
PIPE_BYTES = 4096


@dataclass(slots=True)
class Pipe:
    """A pipe of 4 KiB."""

    reader: int
    writer: int

    def read_all(self) -> str:
        """All that comes until the other end is closed."""
        with open(self.reader, closefd=False) as stream:
            return stream.read()

    def close(self) -> None:
        for descriptor in (self.reader, self.writer):
            with suppress(OSError):
                os.close(descriptor)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe(*os.pipe())
    fcntl.fcntl(pipe.writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    yield pipe
    pipe.close()


def read_in_the_background(pipe: Pipe) -> tuple[list[str], threading.Thread]:
    found: list[str] = []
    reading = threading.Thread(target=lambda: found.append(pipe.read_all()), daemon=True)
    reading.start()
    return found, reading


def all_of(pipe: Pipe, outlet: Outlet) -> list[str]:
    """What an outlet writes until it is closed, by lines."""
    found, reading = read_in_the_background(pipe)
    outlet.close(DEADLINE_SECONDS)
    os.close(pipe.writer)
    reading.join(DEADLINE_SECONDS)
    return found[0].splitlines()


def fill(outlet: Outlet, length: int = 1000) -> int:
    """Write lines that say their number until one is not taken; how many were."""
    for number in range(10 * HELD_BYTES // length):
        if not outlet.write(f"{number}".ljust(length - 1) + "\n"):
            return number
    raise AssertionError("it takes without end")


def test_a_reader_that_stalls_gets_all_that_was_taken_in_order_once_it_reads(pipe: Pipe) -> None:
    outlet = Outlet(pipe.writer)
    taken = fill(outlet)
    assert HELD_BYTES <= taken * 1000 + 1000 <= HELD_BYTES + PIPE_BYTES + 2000
    assert [int(line) for line in all_of(pipe, outlet)] == list(range(taken))


@pytest.mark.parametrize("length", [10, 5000, HELD_BYTES])
def test_lines_of_any_length_come_out_whole(pipe: Pipe, length: int) -> None:
    outlet = Outlet(pipe.writer)
    assert outlet.write("x" * (length - 1) + "\n") == length
    assert all_of(pipe, outlet) == ["x" * (length - 1)]


def test_a_descriptor_that_somebody_made_non_blocking_loses_nothing(pipe: Pipe) -> None:
    os.set_blocking(pipe.writer, False)
    outlet = Outlet(pipe.writer)
    taken = fill(outlet)
    assert [int(line) for line in all_of(pipe, outlet)] == list(range(taken))


def test_an_end_that_nobody_reads_is_waited_for_no_longer_than_that(pipe: Pipe) -> None:
    outlet = Outlet(pipe.writer)
    fill(outlet)
    started = time.monotonic()
    outlet.close(0.2)
    assert time.monotonic() - started < DEADLINE_SECONDS / 2


def test_a_reader_that_is_gone_raises_nothing_and_the_end_does_not_wait_for_it(pipe: Pipe) -> None:
    os.close(pipe.reader)
    outlet = Outlet(pipe.writer)
    fill(outlet)
    started = time.monotonic()
    outlet.close(DEADLINE_SECONDS)
    assert time.monotonic() - started < DEADLINE_SECONDS / 2


def test_what_could_not_be_written_for_a_while_is_written_then(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "AGAIN_SECONDS", 0.01)
    written, full = os.write, threading.Event()

    def write(descriptor: int, data: bytes) -> int:
        if descriptor == pipe.writer and not full.is_set():
            full.set()
            raise OSError(28, "No space left on device")
        return written(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    outlet = Outlet(pipe.writer)
    outlet.write("a\n")
    outlet.write("b\n")
    assert full.wait(DEADLINE_SECONDS)
    time.sleep(0.05)
    assert all_of(pipe, outlet) == ["a", "b"]


# The lines.


class Sink(io.StringIO):
    """Takes what it has room for."""

    def __init__(self) -> None:
        super().__init__()
        self.takes = True

    def write(self, text: str, /) -> int:
        return super().write(text) if self.takes else 0

    @property
    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]


def test_the_next_line_that_fits_says_how_many_did_not() -> None:
    sink = Sink()
    journal = Journal(sink, ManualClock(now=100.0))
    sink.takes = False
    for _ in range(3):
        journal.write("refused")
    sink.takes = True
    journal.write("refused")
    journal.write("stopped")
    assert sink.lines == [
        {"at": 100.0, "event": "refused", "linesLeftOut": 3},
        {"at": 100.0, "event": "stopped"},
    ]
    assert journal.left_out == 3


def test_of_a_flood_and_of_a_stalled_reader_every_missing_line_is_told_once() -> None:
    sink, clock = Sink(), ManualClock(now=100.0)
    journal = Journal(sink, clock)
    for _ in range(LINES_PER_SECOND + 7):
        if journal.may_write():
            journal.write("refused")
    sink.takes, clock.now = False, 101.0
    journal.write("refused")
    sink.takes, clock.now = True, 102.0
    journal.write("refused")
    assert (sink.lines[-1]["linesLeftOut"], journal.left_out) == (8, 8)
