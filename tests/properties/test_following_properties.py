"""Parts that follow demand: nothing is given twice, no pod lives at another's cost, and what stays the same settles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import given

from kvquota_operator.planning.following import FLOOR, STEP, Place, targets
from kvquota_operator.planning.moving import Part, moved
from kvquota_operator.planning.spreading import filled, pods_served

ROOMS = st.sampled_from([2_000, 2_000, 500, 100])
REFUSED = st.sampled_from([0, 0, 0, 20, 150, 10**12])
MOST_WRITES = 12  # of one pod's part, until parts have settled for demand that stays the same
LONG = 200  # passes, more than any parts need to settle


@st.composite
def places(draw: st.DrawFn, *, silent: bool = True) -> tuple[int, int, list[Place]]:
    """A total, how many pods are served, and the pods; together they may hold more than there is."""
    pods, least, total = draw(st.integers(1, 6)), draw(st.sampled_from([1, 5, 30])), draw(st.integers(0, 2_000))
    served, found = pods_served(total, least, pods), []
    for _ in range(pods):
        room = draw(ROOMS)
        has = min(room, draw(st.integers(0, max(1, 2 * total // pods))))
        uses = draw(st.integers(0, has))
        asks = uses + refused if (refused := draw(REFUSED)) else 0
        held = has + draw(st.sampled_from([0, 0, 40]))
        soft = draw(st.sampled_from([0, 0, 90]))
        seen = Place(room, held, has, max(least, soft), uses, asks)
        found.append(seen._replace(uses=None, asks=0) if silent and draw(st.integers(0, 5)) == 5 else seen)
    return total, served, [each if place < served else each._replace(room=0) for place, each in enumerate(found)]


@dataclass
class Pool:
    """Pods whose demand stays the same. `written`: by place, how often a part was set anew."""

    total: int
    served: int
    places: list[Place]

    def __post_init__(self) -> None:
        self.written: Counter[int] = Counter()

    def a_pass(self) -> bool:
        """Whether any part was set anew."""
        aims = targets(self.total, self.served, self.places)
        parts = moved(
            [Part(aim, each.held, each.given) for aim, each in zip(aims, self.places, strict=True)], self.total, 1
        )
        changed = [place for place, each in enumerate(self.places) if each.given != parts[place]]
        self.written.update(changed)
        self.places = [
            each._replace(given=part, held=max(each.held, part)) for each, part in zip(self.places, parts, strict=True)
        ]
        return bool(changed)

    def let_go(self, pods: Sequence[int]) -> None:
        """These pods report what they have now; of their work so much has ended that they use no more than that."""
        for place in pods:
            each = self.places[place]
            if each.uses is not None:
                uses = min(each.uses, each.given)
                self.places[place] = each._replace(held=each.given, uses=uses)

    def settle(self) -> None:
        for _ in range(LONG):
            while self.a_pass():
                pass
            self.let_go(range(len(self.places)))
            if not self.a_pass():
                return
        raise AssertionError(f"not settled: {self.written}")


@given(places())
def test_targets_are_within_the_total_and_the_rooms(pool: tuple[int, int, list[Place]]) -> None:
    total, served, pods = pool
    found = targets(total, served, pods)
    assert sum(found) <= total
    assert all(0 <= target <= pod.room for target, pod in zip(found, pods, strict=True))


@given(places(), st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=20))
def test_whoever_lets_go_when_together_they_never_hold_more_than_there_is(
    pool: tuple[int, int, list[Place]], turns: list[list[int]]
) -> None:
    world = Pool(*pool)
    for turn in turns:
        before = sum(each.held for each in world.places)
        world.a_pass()
        assert sum(each.held for each in world.places) <= max(world.total, before)
        world.let_go([place for place in turn if place < len(world.places)])


@given(places(silent=False), places(), st.integers(0, 5), st.booleans())
def test_a_pass_after_a_pass_changes_nothing(
    pool: tuple[int, int, list[Place]], later: tuple[int, int, list[Place]], joining: int, asked: bool
) -> None:
    """Once parts are settled, other things are asked for; or nothing, there is another total, and a pod may join."""
    world = Pool(*pool)
    world.settle()
    world.places = [
        each._replace(uses=new.uses if new.uses is None else min(new.uses, each.given), asks=new.asks if asked else 0)
        for each, new in zip(world.places, (later[2] * 6)[: len(world.places)], strict=True)
    ]
    if not asked:
        world.total = later[0]
        world.places = [
            each._replace(held=0, given=0) if place == joining else each for place, each in enumerate(world.places)
        ]
    world.a_pass()
    assert not world.a_pass()


@given(places())
def test_demand_that_stays_settles_in_few_writes(pool: tuple[int, int, list[Place]]) -> None:
    world = Pool(*pool)
    world.settle()
    assert max(world.written.values(), default=0) <= MOST_WRITES


@given(places(silent=False))
def test_in_the_end_all_is_given_and_who_asks_has_an_equal_part_or_more(pool: tuple[int, int, list[Place]]) -> None:
    world = Pool(*pool)
    world.settle()
    whole = min(world.total, sum(each.room for each in world.places))
    equal = whole // world.served
    assert sum(each.given for each in world.places) == whole
    for each in world.places:
        step = max(1, equal // STEP)
        if (each.uses or 0) + max(each.least, step) > each.given:
            assert each.given >= min(each.asks, equal, each.room) - step
        assert each.given >= min(equal, each.room, max(each.least, equal // FLOOR))


@given(places(silent=False), st.integers(0, 10**12), st.integers(0, 2_000))
def test_whatever_one_pod_says_the_others_keep_an_equal_part_of_what_they_ask_for(
    pool: tuple[int, int, list[Place]], asks: int, uses: int
) -> None:
    world = Pool(*pool)
    world.settle()
    honest = world.places[1:]
    first = world.places[0]
    boasting = first._replace(uses=min(uses, first.room), asks=asks)
    found = targets(world.total, world.served, [boasting, *honest])
    equal = min(world.total, sum(each.room for each in world.places)) // world.served
    for each, target in zip(honest, found[1:], strict=True):
        wants = min(each.given, max(each.asks, 2 * (each.uses or 0)))
        assert target >= min(equal, max(wants, min(each.room, max(each.least, equal // FLOOR))))


@given(places(silent=False), st.integers(0, 5))
def test_without_refusals_what_sums_to_the_total_stays_as_it_is(
    pool: tuple[int, int, list[Place]], silent: int
) -> None:
    world = Pool(pool[0], pool[1], [each._replace(asks=0) for each in pool[2]])
    world.settle()
    parts = [each.given for each in world.places]
    world.places = [each._replace(uses=each.given) for each in world.places]
    if silent < len(parts):
        world.places[silent] = world.places[silent]._replace(uses=None)
    assert not world.a_pass()


@given(st.integers(0, 10**5), st.lists(st.tuples(*(st.integers(0, 10**4),) * 3), min_size=1, max_size=8))
def test_parts_between_bounds_are_as_level_as_those_allow(total: int, pods: list[tuple[int, int, int]]) -> None:
    bounds = [tuple(sorted(each)[turn] for each in pods) for turn in range(3)]
    parts = filled(total, bounds)
    assert sum(parts) == min(total, sum(bounds[-1]))
    low, high = next(
        ((low, high) for low, high in zip(([0] * len(pods), *bounds), bounds, strict=False) if sum(high) >= total),
        (bounds[-1], bounds[-1]),
    )
    assert all(least <= part <= most for least, part, most in zip(low, parts, high, strict=True))
    could_be_more = [part for part, most in zip(parts, high, strict=True) if part < most]
    could_be_less = [part for part, least in zip(parts, low, strict=True) if part > least]
    assert max(could_be_less, default=0) - min(could_be_more, default=10**9) <= 1
