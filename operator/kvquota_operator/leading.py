"""Which of several replicas may write: what one of them makes of the Lease and of its own clock.

A replica looks at the Lease, and writes itself into it as its holder: where nobody holds it, or where the holder has
not written for long enough. Invariants:

1. A replica may write only until `held_until`: `deadline_seconds` after it *sent* the last write of the Lease that was
   answered with yes. A lost answer is no yes, a late one is worth less.
2. A Lease is taken over only `lease_seconds` after its record was first seen, and only if it still is that record: the
   API server compares versions. As that is longer than the deadline, and is counted from later on, the one before has
   stopped. Clocks may differ by anything, and their speeds by a fifth.
3. The times in the Lease are for people. They are written and never read.
4. A Lease that is not there is made without a holder, and is as new to be waited for as one that was held: whoever
   deletes it does not make a second leader. Nothing tells one that was deleted from one that never was, so the very
   first leader waits too.
5. A released Lease (no holder, any term) is free at once: it is released after the last write.

It knows no tasks, no requests and no wall clock. All times are seconds of this replica's own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Final

ABSENT: Final = ""  # the version of a Lease that is not there
NOBODY: Final = ""  # the holder of one that was released, or never held
LONGEST_LEASE_SECONDS: Final = 60.0  # what another release of the operator, or a person, may make everybody wait


@dataclass(frozen=True, slots=True)
class Timing:
    """All in seconds. A killed leader is followed within `lease_seconds` and `look_seconds`: 11 s.

    `lease_seconds`: how old an unchanged record is before it is taken over.
    `deadline_seconds`: how long a leader writes after its last renewal; the rest of the lease is for requests that are
    on their way, and for clocks of different speed.
    `renew_seconds`, `look_seconds`: between two renewals of a leader, and between two looks of the others.
    `retry_seconds`: after a failure.
    """

    lease_seconds: float = 10.0
    deadline_seconds: float = 7.0
    renew_seconds: float = 2.0
    look_seconds: float = 1.0
    retry_seconds: float = 0.5


@dataclass(frozen=True, slots=True)
class Record:
    """What the Lease says: the version that the API server gave it, its holder, how long that asks to be kept, and how
    many terms it has seen; 0 for one that was never held.
    """

    version: str = ABSENT
    holder: str = NOBODY
    lease_seconds: float = 0.0
    terms: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """Read the Lease."""


@dataclass(frozen=True, slots=True)
class Make:
    """Make the Lease, without a holder. What the API server answers was seen, like the answer to a look."""


@dataclass(frozen=True, slots=True)
class Write:
    """Become or stay the holder, if the Lease still is `over`."""

    over: Record


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing is to be done before `until`."""

    until: float


Step = Look | Make | Write | Rest


@dataclass(frozen=True, slots=True)
class Belief:
    """What the replica `me` knows; `me` is another one in every process.

    `record` was first seen at `seen_at`; `current`: nothing is known that may have replaced it. `held_until` is None
    for one that does not lead. `next_at`: when the next step is due.
    """

    me: str
    record: Record | None = None
    seen_at: float = 0.0
    current: bool = False
    held_until: float | None = None
    next_at: float = -inf

    def may_write(self, now: float) -> bool:
        """Whether this replica leads."""
        return self.held_until is not None and now < self.held_until


def next_step(belief: Belief, now: float, timing: Timing) -> Step:
    """What to do now. A leader's rest ends with its right to write."""
    if now < belief.next_at:
        held = belief.held_until
        return Rest(belief.next_at if held is None or held <= now else min(belief.next_at, held))
    record = belief.record
    if record is None or not belief.current:
        return Look()
    if record.version == ABSENT:
        return Make()
    if record.holder == belief.me or now >= _free_at(belief, record, timing):
        return Write(record)
    return Look()


def looked(belief: Belief, record: Record, now: float, timing: Timing) -> Belief:
    """The Lease was read, and is `record`. Who leads and finds another holder leads no more, at once."""
    seen_at = belief.seen_at if belief.record == record else now
    lost = belief.held_until is not None and record.holder != belief.me
    seen = replace(belief, record=record, seen_at=seen_at, current=True, held_until=None if lost else belief.held_until)
    if record.holder == belief.me or record.version == ABSENT:
        return replace(seen, next_at=now)
    free_at = _free_at(seen, record, timing)
    return replace(seen, next_at=min(now + timing.look_seconds, max(now, free_at)))


def wrote(belief: Belief, record: Record, sent_at: float, now: float, timing: Timing) -> Belief:
    """The Lease was written by a request of `sent_at`, and is `record` now, with this replica as its holder."""
    return replace(
        belief,
        record=record,
        seen_at=now,
        current=True,
        held_until=sent_at + timing.deadline_seconds,
        next_at=max(now, sent_at + timing.renew_seconds),
    )


def failed(belief: Belief, now: float, timing: Timing) -> Belief:
    """A look or a write failed, was refused or was not answered: what the Lease says has to be read again."""
    return replace(belief, current=False, next_at=now + timing.retry_seconds)


def resigned(belief: Belief) -> Belief:
    """This replica has stopped writing by itself."""
    return replace(belief, held_until=None)


def _free_at(belief: Belief, record: Record, timing: Timing) -> float:
    """When the record that was first seen at `belief.seen_at` may be replaced by somebody else."""
    if record.holder == NOBODY and record.terms > 0:
        return belief.seen_at
    asked = min(record.lease_seconds, LONGEST_LEASE_SECONDS)
    return belief.seen_at + max(asked, timing.lease_seconds)
