"""Log lines: one JSON object each, on one line.

Invariants:

1. No prompt, no output, no credential and no query string is ever written: the callers' fields are the only ones.
2. A flood is not written out: beyond LINES_PER_SECOND lines are counted, and the next line that is written says how
   many are missing.
"""

from __future__ import annotations

from typing import Final, TextIO

import msgspec

from kvquota_sidecar.clock import Clock

LINES_PER_SECOND: Final = 50  # one refused tenant's retries must not turn the log into the bottleneck


class Journal:
    """Writes to `stream`; `wall` gives Unix seconds."""

    def __init__(self, stream: TextIO, wall: Clock) -> None:
        self._stream = stream
        self._wall = wall
        self._second = 0
        self._written = 0
        self._left_out = 0

    def may_write(self) -> bool:
        """Whether a line may be written now; where not, it is counted as left out. `write` looks by itself."""
        now = self._wall()
        if int(now) != self._second:
            self._second, self._written = int(now), 0
        if self._written < LINES_PER_SECOND:
            return True
        self._left_out += 1
        return False

    def write(self, event: str, **fields: str | int | float | None) -> None:
        """One line. Fields that are None are left out."""
        if not self.may_write():
            return
        self._written += 1
        told = {name: value for name, value in fields.items() if value is not None}
        line = {"at": round(self._wall(), 3), "event": event, **told}
        if self._left_out:
            line["linesLeftOut"], self._left_out = self._left_out, 0
        self._stream.write(msgspec.json.encode(line).decode() + "\n")
        self._stream.flush()
