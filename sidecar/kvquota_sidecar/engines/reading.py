"""What one look at an engine gives: its sample, and what tells one life of the engine from another."""

from __future__ import annotations

from dataclasses import dataclass

from kvquota_sidecar.ledger.asking import EngineSample


@dataclass(frozen=True, slots=True)
class Marks:
    """What changes when an engine starts again; empty and None where it does not say.

    `starts`: when its processes started, Unix seconds. `constants`: what no life of it changes and the next one does.
    `work`: what it has done since it started, in any unit.
    """

    starts: frozenset[float] = frozenset()
    constants: tuple[object, ...] = ()
    work: float | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """`sample` has no `started_at` yet."""

    sample: EngineSample
    marks: Marks = Marks()
