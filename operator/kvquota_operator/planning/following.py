"""Where the parts of one total should be: they follow what is asked for on each pod.

Decides the target of each pod's part from what it has, what it uses and what it asks for. Pure. How far a part may move
towards its target now is decided in `moving`.

Invariants:

1. The targets sum to at most the total, and none is larger than its pod's room.
2. A pod keeps what it has, as long as what all have fits and nobody asks for more: what finds room moves nothing.
3. Where something moves, the wants are met up to one level (max-min): whatever one pod says, the others keep what they
   want up to that. A pod wants what it has, as far as it asks for it, uses half of it, or it is its floor; and as much
   more as it asks for while it is full.
4. A silent pod wants what it has, since nobody knows better, and nothing is taken from it, unless there is not enough
   for what all have.
5. A pod that has less than its floor is new, and wants an equal part.
6. A part is lowered by a step or more, and not before all that was lowered has been let go of; by less, or before, only
   for a pod that is below its floor, and by less for one that is a step below an equal part that it asks for.
7. While more is held than there is, nothing is taken for others: they could not be given it.

It terminates: for demand that stays the same parts settle. How often each is set until then is tested, not proven.

It does not know what a part is counted in, nor what is a truth and what a lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from kvquota_operator.planning.spreading import filled

FLOOR: Final = 4  # a pod keeps a fourth of an equal part: a burst finds that at once, and more within minutes
STEP: Final = 8  # an eighth of an equal part: less is not worth new configs for two pods
HEADROOM: Final = 2  # times what a pod uses now that it keeps: what runs at one moment is not all that comes


class Place(NamedTuple):
    """One pod. `room`: the largest part that it may have, 0 where it should have none; `held`: the most that it may
    hold; `given`: its last part; `least`: less than this is of no use there.

    `uses`: what the tenant holds there, None where nobody knows; `asks`: what it asks for, 0 where it finds room.
    """

    room: int
    held: int
    given: int
    least: int
    uses: int | None
    asks: int

    @property
    def has(self) -> int:
        return self.given if self.given < self.room else self.room

    @property
    def owes(self) -> int:
        """What the pod will let go of, as far as it is heard of."""
        return 0 if self.uses is None else self.held - self.has

    @property
    def lets_go(self) -> bool:
        """Whether it will do so in a moment: as soon as its config is in force, not when work has ended."""
        return self.uses is not None and self.held > max(self.has, self.uses)


class _View(NamedTuple):
    """Of each pod what it has, its floor, and what it wants; `step` is the least that is worth a move."""

    has: Sequence[int]
    floors: Sequence[int]
    wants: Sequence[int]
    equal: int
    step: int

    @property
    def most(self) -> Sequence[int]:
        return [max(pair) for pair in zip(self.has, self.wants, strict=True)]

    @property
    def lacking(self) -> int:
        """What is missing to the floors."""
        return sum(max(0, floor - has) for floor, has in zip(self.floors, self.has, strict=True))


def targets(total: int, served: int, places: Sequence[Place]) -> tuple[int, ...]:
    """The parts to aim at, in the order of `places`; `served` of them have room (1 or more)."""
    whole = min(total, sum([place.room for place in places]))
    at_rest = _at_rest(whole, whole // served, places)
    if at_rest is not None:
        return at_rest
    view = _view(places, whole // served)
    spare = whole - sum(view.has)
    if spare < 0:
        return filled(whole, (view.floors, view.wants, view.most))
    free = total - sum([place.held for place in places])
    due = min(spare, max(0, free) + sum([place.owes for place in places]))
    raised = _raised(places, view, due, whole)
    if free < 0:
        return raised
    lowered = _lowered(places, view, due)
    return tuple(low if low < has else high for has, low, high in zip(view.has, lowered, raised, strict=True))


def _at_rest(whole: int, equal: int, places: Sequence[Place]) -> tuple[int, ...] | None:
    """What each has, where that is all there is, and nobody is below its floor or asks for more: as nearly always."""
    step, floor, found = max(1, equal // STEP), equal // FLOOR, []
    for room, _, given, least, uses, asks in places:
        has = given if given < room else room
        if has < equal and has < room and (has < floor or has < least):
            return None
        if asks >= has + step <= room and uses is not None and uses + (least if least > step else step) > has:
            return None
        found.append(has)
    return tuple(found) if sum(found) == whole else None


def _view(places: Sequence[Place], equal: int) -> _View:
    step = max(1, equal // STEP)
    floors = [min(place.room, equal, max(place.least, equal // FLOOR)) for place in places]
    starts = [min(equal, place.room) if place.has < floor else 0 for place, floor in zip(places, floors, strict=True)]
    has = [_kept(place, start) for place, start in zip(places, starts, strict=True)]
    wants = [
        max(start, _wanted(place, had, floor, step))
        for place, had, floor, start in zip(places, has, floors, starts, strict=True)
    ]
    return _View(has, floors, wants, equal, step)


def _kept(place: Place, start: int) -> int:
    """A silent pod that should have more has back what it did not let go of, as far as anybody knows."""
    return max(place.has, min(start, place.held)) if place.uses is None else place.has


def _wanted(place: Place, had: int, floor: int, step: int) -> int:
    if place.uses is None:
        return had
    keeps = min(had, max(floor, HEADROOM * place.uses))
    asks, is_full = min(place.asks, place.room), place.uses + max(place.least, step) > had
    return max(keeps, asks if is_full and asks >= had + step else min(asks, had))


def _raised(places: Sequence[Place], view: _View, due: int, whole: int) -> tuple[int, ...]:
    """What each has with `due` beside it: for those who want it, then for all who hold no more than they have.

    Where those can take no more, the others may have back what they did not let go of.
    """
    most, soon = view.most, sum(view.has) + due
    calm = [high if place.held > place.has else place.room for place, high in zip(places, most, strict=True)]
    if sum(calm) <= soon:
        return filled(whole, (calm, [place.room for place in places]))
    return filled(soon, (view.has, most, calm))


def _lowered(places: Sequence[Place], view: _View, due: int) -> Sequence[int]:
    """What each has without what others want of it more than what is `due`."""
    starved = view.lacking > due
    if any(place.lets_go for place in places) and not starved:
        return view.has
    fair = filled(sum(view.has) + due, (view.wants,))
    entitled = starved or any(
        min(level, view.equal) - has >= view.step for level, has in zip(fair, view.has, strict=True)
    )
    least = 1 if starved else view.step
    needs = sum(each for each in _above(fair, view.has) if each >= least) - due
    if needs < least:
        return view.has
    offers = [0 if place.uses is None else each for place, each in zip(places, _above(view.has, fair), strict=True)]
    givers = _givers(offers, needs, view.step, entitled=entitled)
    return _without(view.has, fair, givers, needs)


def _above(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [max(0, left - right) for left, right in zip(one, other, strict=True)]


def _givers(offers: Sequence[int], needs: int, step: int, *, entitled: bool) -> list[int]:
    """The places of those that give: few, so that each gives a step or more; where somebody is `entitled`, enough."""
    least = 1 if entitled else step
    in_turn = sorted((place for place, offer in enumerate(offers) if offer >= least), key=lambda each: -offers[each])
    together = accumulate(offers[place] for place in in_turn)
    enough = 1 + sum(1 for each in together if each < needs) if entitled else 1
    return in_turn[: max(enough, needs // step)]


def _without(has: Sequence[int], fair: Sequence[int], givers: Sequence[int], needs: int) -> Sequence[int]:
    if not givers:
        return has
    had, kept = [has[place] for place in givers], [fair[place] for place in givers]
    left = filled(max(sum(kept), sum(had) - needs), (kept, had))
    after = list(has)
    for place, part in zip(givers, left, strict=True):
        after[place] = part
    return after
