"""Log lines: one JSON object each, on one line.

Invariants:

1. No prompt, no output, no credential and no query string is ever written: the callers' fields are the only ones.
2. A flood is not written out: beyond LINES_PER_SECOND lines are left out, and RARE_LINES more are kept for what a
   flood is not made of.
3. Nobody waits for who reads the log, and nothing is raised for them: what the sink does not take is left out.
4. Lines that are left out are counted, and the next line that is written says how many are missing.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from kvquota_sidecar.clock import Clock

LINES_PER_SECOND: Final = 50  # one refused tenant's retries must not turn the log into the bottleneck
RARE_LINES: Final = 10  # a second, beside a flood: the end of a drain has two, a new config one


class Sink(Protocol):
    """Where lines go: `kvquota_sidecar.supervisor.Outlet`, or a stream in memory."""

    def write(self, text: str, /) -> int:
        """Take all of it or nothing: how many characters were taken. Never waits, never raises."""


class Journal:
    """Writes to `sink`; `wall` gives Unix seconds. `left_out`: lines, since the start."""

    def __init__(self, sink: Sink, wall: Clock) -> None:
        self._sink = sink
        self._wall = wall
        self._second = 0
        self._written = 0
        self._told = 0  # of those that were left out
        self.left_out = 0

    def may_write(self) -> bool:
        """Whether a line may be written that clients cause, as many as they like; where not, it is left out."""
        return self._is_below(LINES_PER_SECOND)

    def write(self, event: str, **fields: str | int | float | None) -> None:
        """One line. Fields that are None are left out."""
        if not self._is_below(LINES_PER_SECOND + RARE_LINES):
            return
        self._written += 1
        told = {name: value for name, value in fields.items() if value is not None}
        line = {"at": round(self._wall(), 3), "event": event, **told}
        if self.left_out > self._told:
            line["linesLeftOut"] = self.left_out - self._told
        if self._sink.write(msgspec.json.encode(line).decode() + "\n"):
            self._told = self.left_out
        else:
            self.left_out += 1

    def _is_below(self, limit: int) -> bool:
        now = self._wall()
        if int(now) != self._second:
            self._second, self._written = int(now), 0
        if self._written < limit:
            return True
        self.left_out += 1
        return False
