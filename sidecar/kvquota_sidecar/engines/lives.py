"""Which life of the engine a reading is of.

Decides whether the engine has started again since the reading before. Pure: the clock is handed in.

Invariants:

1. Where processes say when they started, it is another life when all of them started after every one that was known:
   one process of several that came back, or another one that answered, is none.
2. Where they do not say (several processes behind one port), it is another life when what never changes has changed, or
   when what only grows has fallen.
3. An engine that says nothing of all that has no name.
"""

from __future__ import annotations

from kvquota_sidecar.clock import Clock
from kvquota_sidecar.engines.reading import Marks


class Lives:
    """Names the lives of one engine. `wall` is Unix seconds."""

    def __init__(self, wall: Clock) -> None:
        self._wall = wall
        self._name: float | None = None
        self._latest_start: float | None = None
        self._constants: tuple[object, ...] = ()
        self._work: float | None = None

    def name(self, marks: Marks) -> float | None:
        """Unix seconds: its start, or when it was first seen; None as long as the engine shows no mark."""
        if marks == Marks():
            return self._name
        if self._name is None or self._is_another(marks):
            self._name = min(marks.starts, default=self._wall())
            self._latest_start = None
        self._latest_start = max(marks.starts, default=self._latest_start)
        self._constants = marks.constants or self._constants
        self._work = marks.work if marks.work is not None else self._work
        return self._name

    def _is_another(self, marks: Marks) -> bool:
        if marks.starts and self._latest_start is not None:
            return min(marks.starts) > self._latest_start
        changed = bool(marks.constants and self._constants) and marks.constants != self._constants
        return changed or (marks.work is not None and self._work is not None and marks.work < self._work)
