"""How many tokens a frame stands for, learnt from streams that have ended."""

from __future__ import annotations

import pytest

from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.pace import FEWEST, HIGHEST, MAX_KNOWN, WINDOW, Paces

LEARNT: dict[str, tuple[list[tuple[int, int]], float]] = {
    "nothing": ([], 1.0),
    "a token a frame": ([(FEWEST, FEWEST)], 1.0),
    "too few frames": ([(FEWEST - 1, 10 * FEWEST)], 1.0),
    "an interval": ([(FEWEST, 10 * FEWEST)], 10.0),
    "the mean of guesses": ([(FEWEST, 2 * FEWEST), (FEWEST, 3 * FEWEST)], 2.5),
    "frames that were joined now and then": ([(1000, 1040)], 1.0),
    "more frames than tokens": ([(100, 60)], 1.0),
    "streams without a frame": ([(FEWEST, 2 * FEWEST), (0, 10_000)], 2.0),
    "more than anything shows": ([(FEWEST, 1_000_000)], HIGHEST),
}


@pytest.mark.parametrize(("streams", "expected"), LEARNT.values(), ids=LEARNT)
def test_tokens_of_a_frame(streams: list[tuple[int, int]], expected: float) -> None:
    paces = Paces()
    for frames, tokens in streams:
        paces.learn("shop/search", frames, Tokens(tokens))
    assert paces.tokens_per_frame("shop/search") == expected


def test_a_tenant_learns_from_nobody_else() -> None:
    paces = Paces()
    paces.learn("shop/search", 1000, Tokens(20_000))
    assert (paces.tokens_per_frame("shop/search"), paces.tokens_per_frame("shop/batch")) == (20.0, 1.0)


def test_an_engine_with_another_setting_is_followed() -> None:
    paces = Paces()
    for _ in range(10):
        paces.learn("shop/search", WINDOW, Tokens(8 * WINDOW))
    for _ in range(10):
        paces.learn("shop/search", WINDOW, Tokens(WINDOW))
    assert paces.tokens_per_frame("shop/search") == 1.0


def test_it_is_bounded() -> None:
    paces = Paces()
    for number in range(MAX_KNOWN + 1):
        paces.learn(str(number), FEWEST, Tokens(2 * FEWEST))
    assert [paces.tokens_per_frame(tenant) for tenant in ("0", "1", str(MAX_KNOWN))] == [1.0, 2.0, 2.0]
