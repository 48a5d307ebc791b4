"""What is known of objects, in whatever order answers, events and lists say it."""

from typing import Any

import pytest

from kvquota_operator.adapters.shelf import MOST_ENDED, Shelf


def body(version: int, n: int = 1, uid: str = "u") -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}, "n": n}


@pytest.fixture
def shelf() -> Shelf[int]:
    return Shelf(lambda each: each["n"], lambda before, after: None)


def test_an_answer_to_a_creation_that_comes_after_the_deletion_changes_nothing(shelf: Shelf[int]) -> None:
    shelf.replace([], "10")
    shelf.put(body(12))
    shelf.remove(body(13))
    shelf.put(body(12))
    assert shelf.items == {}


def test_what_was_deselected_and_is_selected_again_is_there_again(shelf: Shelf[int]) -> None:
    shelf.put(body(12))
    shelf.remove(body(13))
    shelf.put(body(14, n=2))
    assert shelf.items == {"u": 2}


def test_an_end_that_was_seen_with_an_older_body_counts_from_the_newest_one(shelf: Shelf[int]) -> None:
    shelf.put(body(14))
    shelf.remove(body(12))
    shelf.put(body(14))
    assert shelf.items == {}


def test_ends_are_remembered_up_to_a_bound(shelf: Shelf[int]) -> None:
    for place in range(MOST_ENDED + 1):
        shelf.remove(body(12, uid=str(place)))
    shelf.put(body(12, uid="0"))
    shelf.put(body(12, uid="1"))
    assert shelf.items == {"0": 1}


def test_a_list_that_is_behind_what_was_seen_before_it_is_taken_as_it_is(shelf: Shelf[int]) -> None:
    """The store was put back to version 15."""
    shelf.replace([body(8), body(9, uid="v")], "10")
    shelf.put(body(20, n=2))
    shelf.put(body(21, uid="born later"))
    shelf.remove(body(22, uid="v"))
    shelf.ask()
    assert shelf.replace([body(8), body(9, uid="v")], "15") is True
    assert shelf.items == {"u": 1, "v": 1}
    shelf.put(body(16, n=3))
    shelf.put(body(17, n=4, uid="new"))
    assert shelf.items == {"u": 3, "v": 1, "new": 4}
    shelf.ask()
    assert shelf.replace([body(16, n=3), body(9, uid="v"), body(17, n=4, uid="new")], "18") is False


def test_an_object_that_a_list_shows_older_than_it_was_tells_of_a_store_that_has_caught_up_since(
    shelf: Shelf[int],
) -> None:
    shelf.put(body(20, n=2))
    shelf.ask()
    assert shelf.replace([body(8)], "30") is True
    assert shelf.items == {"u": 1}


def test_what_comes_while_a_list_is_under_way_is_kept_where_it_is_newer(shelf: Shelf[int]) -> None:
    shelf.put(body(8))
    shelf.put(body(8, uid="ended"))
    shelf.ask()
    shelf.put(body(12, n=2))
    shelf.put(body(13, n=3, uid="born"))
    shelf.put(body(9, n=4, uid="known to the list"))
    shelf.put(body(9, n=5, uid="gone by the list"))
    shelf.remove(body(14, uid="ended"))
    assert shelf.replace([body(8), body(8, uid="ended"), body(9, n=4, uid="known to the list")], "10") is False
    assert shelf.items == {"u": 2, "born": 3, "known to the list": 4}
    shelf.put(body(8, uid="ended"))
    assert "ended" not in shelf.items


def test_an_answer_of_the_time_before_holds_until_the_next_list(shelf: Shelf[int]) -> None:
    shelf.put(body(20))
    shelf.ask()
    assert shelf.replace([], "15") is True
    shelf.put(body(19, n=2))
    assert shelf.items == {"u": 2}
    shelf.ask()
    assert shelf.replace([], "17") is True
    assert shelf.items == {}
