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
