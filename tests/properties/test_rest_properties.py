"""A pool at rest is found by a short way, which leads where the long one does."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from kvquota_operator.planning import following
from kvquota_operator.planning.following import Place, targets
from kvquota_operator.planning.spreading import pods_served


@st.composite
def nearly_at_rest(draw: st.DrawFn) -> tuple[int, int, list[Place]]:
    """Pods whose parts sum to about the total, of which some ask for more, owe something or are silent."""
    part, least = draw(st.sampled_from([0, 4, 10, 60, 200])), draw(st.sampled_from([1, 5, 30]))
    places = []
    for _ in range(draw(st.integers(1, 5))):
        given, room = part + draw(st.sampled_from([0, 0, -1, 1, 40])), draw(st.sampled_from([2_000, 2_000, 150]))
        uses = draw(st.sampled_from([None, 0, part // 2, part]))
        held = max(0, given) + draw(st.sampled_from([0, 0, 0, 40]))
        asks = 0 if uses is None else draw(st.sampled_from([0, 0, part, part + 1, part + 2, 10**6]))
        places.append(Place(room, held, max(0, given), draw(st.sampled_from([least, least, 60])), uses, asks))
    total = sum(min(each.given, each.room) for each in places) + draw(st.sampled_from([0, 0, 0, -10, 1, 100]))
    return max(0, total), pods_served(max(0, total), least, len(places)), places


def the_long_way(total: int, served: int, places: list[Place]) -> tuple[int, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "_at_rest", lambda *_: None)
        return targets(total, served, places)


@settings(max_examples=1_000)
@given(nearly_at_rest())
def test_the_short_way_leads_where_the_long_one_does(pool: tuple[int, int, list[Place]]) -> None:
    assert targets(*pool) == the_long_way(*pool)
