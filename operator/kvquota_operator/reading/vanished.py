"""Pods whose objects are gone, or out of the selector, while they may still work.

Decides for how long such a pod counts as one that is leaving: it gets nothing new and holds what it had. Pure.

Invariants:

1. An object that is gone says nothing of what runs: deleted by force, a pod has its grace period on its node, and works
   on in it. It is counted from when the end of the object was seen.
2. Where nothing can run any more, the pod is gone with its object: it never had a node, or its containers were seen to
   have ended. So a graceful end keeps nothing back.
3. Its durable copy counts as long as it does, though Kubernetes collects that with the pod.
4. As long as its durable copy is stored, Kubernetes has the pod: no grace period ends what only left the selector. Once
   that is collected, the grace period counts from then.

It does not know whether the node is still there: one that is cut off may run a pod for longer than this.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kvquota_api.pod_config import PodConfig
from kvquota_operator.reading.pods import PodRecord

EXTENSION_SECONDS: Final = 2.0  # that a node adds to a grace period in which a preStop hook has not ended (Kubernetes)


@dataclass(frozen=True, slots=True)
class _Kept:
    record: PodRecord
    copy: PodConfig | None
    stored: bool
    until: float


class Vanished:
    """Those of one pool. All times in seconds on one clock."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def keep(self, record: PodRecord, copy: PodConfig | None, now: float, *, stored: bool = False) -> None:
        """A pod is not seen any more. `record`: as it was last, `copy`: the last durable copy of its config.

        `stored`: whether a copy still is.
        """
        self.sweep(now, ())
        if record.may_run and record.seen.governed:
            seen = replace(record.seen, ip=None, deleting=True)  # who has its address next is somebody else
            self._kept[seen.uid] = _Kept(replace(record, seen=seen), copy, stored, _end(record, now))

    def follow(self, copy: PodConfig) -> None:
        """A copy was still stored: what was on its way to the pod may have reached it."""
        kept = self._kept.get(copy.pod.uid)
        if kept is not None:
            self._kept[copy.pod.uid] = replace(kept, copy=copy, stored=True)

    def collected(self, uid: str, now: float) -> None:
        """The copy of a pod is stored no longer."""
        kept = self._kept.get(uid)
        if kept is not None and kept.stored:
            self._kept[uid] = replace(kept, stored=False, until=_end(kept.record, now))

    def sweep(self, now: float, there: Container[str]) -> None:
        """Forget those whose grace period is over, and those that are `there` again."""
        kept = {uid: each for uid, each in self._kept.items() if uid not in there}
        self._kept = {uid: _at(each, now) for uid, each in kept.items() if each.stored or now < each.until}

    @property
    def records(self) -> Mapping[str, PodRecord]:
        """By uid, as of pods that are being deleted."""
        return {uid: kept.record for uid, kept in self._kept.items()}

    def copies(self) -> Iterator[PodConfig]:
        """Their durable copies, of those that had one."""
        return (kept.copy for kept in self._kept.values() if kept.copy is not None)


def _end(record: PodRecord, now: float) -> float:
    return now + record.grace_seconds + EXTENSION_SECONDS


def _at(kept: _Kept, now: float) -> _Kept:
    """What outlives its grace period has left the selector. One object for as long as nothing changes."""
    left = kept.stored and now >= kept.until
    if kept.record.seen.left == left:
        return kept
    return replace(kept, record=replace(kept.record, seen=replace(kept.record.seen, left=left)))
