"""How the pod leaves: what is still taken, and when it is over.

Decides the phases of the drain from the time and the number of running requests. Pure.

    Serving --start()--> LameDuck --lame_duck seconds--> Refusing --nothing runs, or limit seconds--> Over
       ^                                                                                                |
       +------------------------- lapse(): no final start within limit and GRACE seconds ---------------+

Invariants:

1. Readiness is off from the start; requests are still taken in LameDuck, for clients that have not heard of it yet.
2. A final start (a signal to end) is never taken back. One that only announces it (a hook, which anybody on the node
   may call) is, when nothing final follows. Starting it again does not start the clock again.
3. It is over `limit` seconds after its start at the latest; before that only when nothing runs any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Phase = Literal["Serving", "LameDuck", "Refusing", "Over"]
# Seconds from the end of the drain to the signal: a kubelet that has waited for the hook ends the engine, and then this
# program, which takes as long as the engine takes to exit; engines exit within a few seconds.
GRACE: Final = 30.0


@dataclass(slots=True)
class Drain:
    """`lame_duck_seconds`: longer than the slowest client's view of the endpoints. `limit_seconds`: below the pod's
    grace period. `started_at`: monotonic seconds; None while serving."""

    lame_duck_seconds: float
    limit_seconds: float
    started_at: float | None = None
    final: bool = False

    def start(self, now: float, *, final: bool = False) -> None:
        """Begin to leave; `final`: in earnest."""
        self.final = self.final or final
        if self.started_at is None:
            self.started_at = now

    def lapse(self, now: float) -> bool:
        """Take back what nothing final followed in time; whether it was."""
        if self.final or self.started_at is None or now - self.started_at < self.limit_seconds + GRACE:
            return False
        self.started_at = None
        return True

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
