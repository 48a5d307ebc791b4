"""Who has to give back: the order of victims, and who is spared."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from kvquota_api.amounts import Blocks
from kvquota_sidecar.admission.victims import Candidate, Freed, Holding, victims


def tenant(name: str, soft: int, *work: Candidate) -> Holding:
    return Holding(name, Blocks(soft), work)


def candidate(ticket: int, charge: int = 10, *, priority: int = 0, sent: bool = False) -> Candidate:
    return Candidate(ticket, "search", priority, Blocks(charge), sent)


def alone(*holdings: Holding) -> Freed:
    """Each request frees its charge: nothing is shared."""
    charges = {each.ticket: each.charge for holding in holdings for each in holding.work}
    return lambda gone, ticket: charges[ticket]


def chosen(*holdings: Holding, missing: int) -> tuple[int, ...]:
    return victims(holdings, missing, alone(*holdings))


CASES = [
    pytest.param([tenant("search", 10, candidate(1))], 5, (), id="nobody within soft"),
    pytest.param([tenant("search", 9, candidate(1))], 5, (1,), id="a request is over-soft as a whole"),
    pytest.param([tenant("search", 0, candidate(1))], 0, (), id="nobody when nothing is missing"),
    pytest.param([tenant("search", 0, candidate(1))], -7, (), id="nobody when there is more than enough"),
    pytest.param([], 5, (), id="nobody when nobody is there"),
    pytest.param(
        [tenant("search", 20, candidate(1), candidate(2, 15), candidate(3, 5))],
        1,
        (3,),
        id="what comes after the first that does not fit soft is over-soft though it would fit",
    ),
    pytest.param(
        [tenant("search", 10, candidate(1), candidate(2), candidate(3))], 5, (3,), id="the youngest of one tenant"
    ),
    pytest.param(
        [tenant("search", 0, candidate(1), candidate(2, sent=True), candidate(3, sent=True))],
        15,
        (1, 3),
        id="whoever has not sent a byte before the youngest",
    ),
    pytest.param(
        [tenant("search", 0, candidate(1), candidate(5, sent=True)), tenant("batch", 0, candidate(2, 21, sent=True))],
        5,
        (2,),
        id="the tenant furthest over soft before whoever has not sent a byte",
    ),
    pytest.param(
        [tenant("search", 10, candidate(1), candidate(2)), tenant("batch", 0, candidate(3, 9, priority=-1))],
        5,
        (3,),
        id="the lowest priority before the tenant furthest over soft",
    ),
    pytest.param(
        [tenant("search", 0, candidate(1), candidate(2, priority=-1))], 5, (2,), id="a priority of the request's own"
    ),
    pytest.param(
        [tenant("search", 0, candidate(1), candidate(4)), tenant("batch", 0, candidate(2), candidate(3))],
        15,
        (4, 3),
        id="equally far: the youngest of all, and then the other tenant is further over soft",
    ),
    pytest.param(
        [tenant("search", 0, candidate(1), candidate(4)), tenant("batch", 0, candidate(2, 15))],
        25,
        (4, 2),
        id="the tenant that is furthest over soft after the first has gone",
    ),
    pytest.param(
        [tenant("search", 0, candidate(1, 30), candidate(2, 5))],
        30,
        (1,),
        id="the small one that is not needed is spared",
    ),
    pytest.param(
        [tenant("search", 0, candidate(1, 30), candidate(2, 5), candidate(3, 4), candidate(4, 3))],
        35,
        (4, 3, 1),
        id="spared from the last but one back",
    ),
    pytest.param(
        [tenant("search", 10, candidate(1), candidate(2), candidate(3))], 99, (3, 2), id="all over-soft when too little"
    ),
]


@pytest.mark.parametrize(("holdings", "missing", "expected"), CASES)
def test_victims(holdings: list[Holding], missing: int, expected: tuple[int, ...]) -> None:
    assert chosen(*holdings, missing=missing) == expected


def test_a_second_victim_that_has_become_protected_is_spared() -> None:
    """With the first over-soft request gone the next ones fit soft, and then another tenant's turn comes."""
    search = tenant("search", 10, candidate(1, 20), candidate(2, 6, sent=True), candidate(3, 5, sent=True))
    batch = tenant("batch", 100, candidate(4, 101, priority=9, sent=True))
    assert chosen(search, batch, missing=25) == (1, 3)
    assert chosen(search, batch, missing=26) == (4,)


def shared(charges: Mapping[frozenset[int], int]) -> Freed:
    """`charges`: of the tenant, by who is left."""

    def freed(gone: frozenset[int], ticket: int) -> int:
        everybody = max(charges, key=len)
        return charges[everybody - gone] - charges[everybody - gone - {ticket}]

    return freed


def by_blocks(**blocks: str) -> Freed:
    """Each request holds the named blocks; what several hold counts once."""
    held = {int(name[1:]): set(letters) for name, letters in blocks.items()}
    groups = [frozenset(group) for size in range(len(held) + 1) for group in itertools.combinations(held, size)]
    return shared({group: len(set().union(*(held[each] for each in group))) for group in groups})


def test_shared_blocks_stay_and_more_are_ended_for_it() -> None:
    work = tenant("search", 0, candidate(1, 4), candidate(2, 1), candidate(3, 1))
    freed = by_blocks(r1="abcd", r2="abcx", r3="abcy")
    assert victims([work], 2, freed) == (3, 2)
    assert victims([work], 3, freed) == (3, 2, 1)


def test_whoever_frees_nothing_is_spared() -> None:
    work = tenant("search", 0, candidate(1, 4), candidate(2, 0), candidate(3, 0))
    assert victims([work], 4, by_blocks(r1="abcd", r2="abcd", r3="abcd")) == (3, 2, 1)
    assert victims([work], 2, by_blocks(r1="abcd", r2="", r3="ab")) == (1,)
    assert victims([work], 1, by_blocks(r1="abcd", r2="", r3="")) == (1,)


def test_who_inherits_a_shared_block_pays_for_it_when_protection_is_judged_again() -> None:
    """The third holds what the first paid for: alone it has 4 blocks, not 1, and does not fit a soft of 3."""
    work = tenant("search", 3, candidate(1, 4), candidate(3, 1, sent=True))
    freed = by_blocks(r1="abcd", r3="abcx")
    assert victims([work], 2, freed) == (1, 3)
    assert victims(
        [tenant("search", 4, candidate(1, 5), candidate(3, 1, sent=True))], 9, by_blocks(r1="abcde", r3="abcx")
    ) == (1,)


def test_a_thousand_requests_of_a_thousand_tenants_are_judged_in_few_questions() -> None:
    holdings = [tenant(f"t{number}", 0, candidate(number)) for number in range(1000)]
    holdings.append(tenant("search", 10, *(candidate(1000 + number, sent=number % 2 == 0) for number in range(1000))))
    asked = 0

    def freed(gone: frozenset[int], ticket: int) -> int:
        nonlocal asked
        asked += 1
        return 10

    assert len(victims(holdings, 15_000, freed)) == 1500
    assert asked <= 3 * 1999
