"""What the live prompts of one tenant share, and who pays for it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from kvquota_sidecar.ledger.asking import LedgerError
from kvquota_sidecar.ledger.sharing import Prefixes, _Run


def chain(text: str) -> tuple[int, ...]:
    """One number for each letter, that stands for all up to it."""
    return tuple(hash((text[: end + 1], end)) for end in range(len(text)))


def counted(**texts: str) -> Prefixes[str]:
    prefixes: Prefixes[str] = Prefixes()
    for key, text in texts.items():
        prefixes.add(key, chain(text))
    prefixes.check_integrity()
    return prefixes


@pytest.mark.parametrize(
    ("older", "added", "shared"),
    [
        pytest.param([], "abc", 0, id="the first shares nothing"),
        pytest.param(["abc"], "", 0, id="a prompt of no whole chunk shares nothing"),
        pytest.param(["abc"], "abc", 3, id="the same prompt again shares all"),
        pytest.param(["abc"], "abd", 2, id="a common beginning"),
        pytest.param(["abc"], "xbc", 0, id="the same end after another beginning is not shared"),
        pytest.param(["abc"], "abcde", 3, id="a conversation that went on shares what it had"),
        pytest.param(["abcde"], "abc", 3, id="the beginning of a longer one shares all"),
        pytest.param(["abx", "aby"], "abyz", 3, id="the longest of several counts"),
        pytest.param(["ab", "abc", "abcd"], "abcde", 4, id="a beginning in pieces"),
    ],
)
def test_what_a_prompt_shares_with_older_ones(older: list[str], added: str, shared: int) -> None:
    prefixes = counted(**{str(number): text for number, text in enumerate(older)})
    assert prefixes.add("added", chain(added)) == shared
    assert prefixes.leading("added") == shared
    prefixes.check_integrity()


def test_when_the_oldest_goes_the_next_oldest_pays_for_what_both_held() -> None:
    prefixes = counted(first="ssxx", second="ssyy", third="sszz")
    assert [prefixes.leading(key) for key in ("first", "second", "third")] == [0, 2, 2]
    assert prefixes.remove("first") == {"second": 0}
    assert [prefixes.leading(key) for key in ("second", "third")] == [0, 2]


def test_when_one_goes_several_may_pay_for_parts_of_what_it_held() -> None:
    prefixes = counted(first="abcd", second="ab", third="abcd")
    assert prefixes.remove("first") == {"second": 0, "third": 2}


def test_when_one_goes_that_pays_for_nothing_shared_nobody_pays_more() -> None:
    prefixes = counted(first="ab", second="abx", third="abx")
    assert prefixes.remove("third") == {}
    assert prefixes.remove("second") == {}


def test_what_would_be_is_told_without_a_change() -> None:
    prefixes = counted(first="abcd", second="ab", third="abcd")
    assert prefixes.fallen({"first"}) == {"second": 0, "third": 2}
    assert prefixes.fallen({"first", "second"}) == {"third": 0}
    assert prefixes.fallen({"first"}, gone={"second"}) == {"third": 0}
    assert prefixes.fallen({"second"}, gone={"first"}) == {"third": 0}
    assert prefixes.fallen({"first"}, gone={"second", "third"}) == {}
    assert prefixes.leading("third", gone={"first"}) == 2
    assert prefixes.leading("third", gone={"first", "second"}) == 0
    assert [prefixes.leading(key) for key in ("first", "second", "third")] == [0, 2, 4]


def test_nothing_is_left_of_what_was_removed() -> None:
    prefixes: Prefixes[int] = Prefixes()
    size = memory(prefixes)
    for key in range(500):
        prefixes.add(key, chain("s" * (key % 7) + chr(key) * (key % 5)))
    assert memory(prefixes) > 10 * size
    for key in range(500):
        prefixes.remove(key)
    prefixes.check_integrity()
    assert (len(prefixes), memory(prefixes)) == (0, size)


def test_memory_is_that_of_the_live_prompts_whatever_came_and_went() -> None:
    prefixes: Prefixes[int] = Prefixes()
    prefixes.add(-1, chain("a" * 200))
    for key in range(2000):
        prefixes.add(key, chain("a" * (key % 200) + "b" * 50))
        prefixes.remove(key)
    assert runs(prefixes) <= 200
    prefixes.remove(-1)
    assert runs(prefixes) == 0


def test_a_very_long_prompt_in_a_thousand_pieces_is_no_trouble() -> None:
    prefixes: Prefixes[int] = Prefixes()
    long = tuple(range(1000))
    prefixes.add(-1, long)
    for key in range(1, 1000):
        assert prefixes.add(key, long[:key]) == key
    prefixes.check_integrity()
    assert prefixes.remove(-1) == {key: key - 1 for key in range(1, 1000)}
    assert prefixes.leading(999) == 998


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda prefixes: prefixes.add("first", ()), id="a key that is there is added"),
        pytest.param(lambda prefixes: prefixes.remove("nobody"), id="a key that is not there is removed"),
        pytest.param(lambda prefixes: prefixes.leading("nobody"), id="a key that is not there is asked for"),
    ],
)
def test_a_key_that_cannot_be_is_an_error(call: Callable[[Prefixes[str]], object]) -> None:
    prefixes = counted(first="ab")
    with pytest.raises(LedgerError):
        call(prefixes)
    assert prefixes.leading("first") == 0


def lose_a_holder(prefixes: Prefixes[str]) -> None:
    del next(iter(prefixes._root.next.values())).holders["second"]


def lose_all_holders(prefixes: Prefixes[str]) -> None:
    prefixes._last.clear()
    next(iter(prefixes._root.next.values())).holders.clear()


@pytest.mark.parametrize(
    ("corrupt", "named"),
    [
        pytest.param(lose_a_holder, "'second' does not hold", id="a prompt lost its beginning"),
        pytest.param(lose_all_holders, "run of 2 chunks from 0", id="a run that nobody holds"),
    ],
)
def test_a_tree_that_does_not_hang_together_is_found(corrupt: Callable[[Prefixes[str]], None], named: str) -> None:
    prefixes = counted(first="abx", second="aby")
    corrupt(prefixes)
    with pytest.raises(LedgerError, match=named):
        prefixes.check_integrity()


def all_runs(prefixes: Prefixes[int]) -> list[_Run[int]]:
    found = [prefixes._root]
    for run in found:
        found.extend(run.next.values())
    return list(found)


def runs(prefixes: Prefixes[int]) -> int:
    return len(all_runs(prefixes)) - 1


def memory(prefixes: Prefixes[int]) -> int:
    """Bytes of the tree, without the hashes themselves; a dictionary that is empty counts nothing."""
    parts = [part for run in all_runs(prefixes) for part in (run.holders, run.next, run.chunks)]
    return sum(sys.getsizeof(part) for part in parts if part) + runs(prefixes) * sys.getsizeof(prefixes._root)
