"""How the pod leaves: what is still taken, and when it is over.

Decides the phases of the drain from the time and the number of running requests. Pure.

    Serving --start()--> LameDuck --lame_duck seconds--> Refusing --nothing runs, or limit seconds--> Over

Invariants:

1. Readiness is off from the start; requests are still taken in LameDuck, for clients that have not heard of it yet.
2. It never goes back, and starting it again changes nothing.
3. It is over `limit` seconds after its start at the latest; before that only when nothing runs any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["Serving", "LameDuck", "Refusing", "Over"]


@dataclass(slots=True)
class Drain:
    """`lame_duck_seconds`: longer than the slowest client's view of the endpoints. `limit_seconds`: below the pod's
    grace period. `started_at`: monotonic seconds; None while serving."""

    lame_duck_seconds: float
    limit_seconds: float
    started_at: float | None = None

    def start(self, now: float) -> None:
        """Begin to leave."""
        if self.started_at is None:
            self.started_at = now

    def phase(self, now: float, running: int) -> Phase:
        """Where it stands at `now` with `running` requests."""
        if self.started_at is None:
            return "Serving"
        passed = now - self.started_at
        if passed >= self.limit_seconds:
            return "Over"
        if passed < self.lame_duck_seconds:
            return "LameDuck"
        return "Refusing" if running else "Over"
