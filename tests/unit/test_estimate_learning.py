"""What is learnt from finished requests: tokens per byte, and the length of outputs."""

from __future__ import annotations

import pytest

from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate import ratio as ratio_module
from kvquota_sidecar.estimate.outputs import WINDOW, Outputs
from kvquota_sidecar.estimate.ratio import Ratios


def outputs(*, finished: tuple[int, ...] = (), ended: tuple[int, ...] = ()) -> Outputs:
    made = Outputs()
    for each in finished:
        made.finished(Tokens(each))
    for each in ended:
        made.ended(Tokens(each))
    return made


@pytest.mark.parametrize(
    ("finished", "ended", "expected"),
    [
        pytest.param((), (), None, id="nobody can say before one finished"),
        pytest.param((), (100,) * 10, None, id="nor when all were ended"),
        pytest.param((7,), (), 7, id="one finished output is all that is known"),
        pytest.param(tuple(range(1, 11)), (), 9, id="nine of ten are at most the ninth"),
        pytest.param(tuple(range(1, 101)), (), 90, id="ninety of a hundred"),
        pytest.param((10,) * 9 + (50,), (), 10, id="one long one of ten is beyond"),
        pytest.param((10,) * 5, (10,) * 5, None, id="half of them might have gone on for ever"),
        pytest.param((10,) * 5 + (90,), (20,) * 5, 90, id="what was ended early leans on the longer finished ones"),
        pytest.param((10, 20, 30), (0,) * 50, 30, id="ended before any output: the finished ones decide"),
        pytest.param((10,) * 95, (5,) * 5, 10, id="a few that ended early change nothing"),
    ],
)
def test_the_90th_percentile(finished: tuple[int, ...], ended: tuple[int, ...], expected: int | None) -> None:
    assert outputs(finished=finished, ended=ended).p90() == expected


def test_only_the_last_outputs_count_and_are_kept() -> None:
    made = outputs(finished=(1000,) * WINDOW)
    assert made.p90() == 1000
    for _ in range(WINDOW):
        made.finished(Tokens(5))
    assert made.p90() == 5
    assert len(made._window) == WINDOW


def test_before_anything_is_known_a_byte_is_three_tenths_of_a_token() -> None:
    assert Ratios().estimate("a/t", 1000) == 300


def test_a_prompt_has_at_least_one_token() -> None:
    assert Ratios().estimate("a/t", 0) == 1


def test_an_estimate_is_rounded_up() -> None:
    ratios = Ratios()
    ratios.learn("a/t", 100, Tokens(25))
    assert ratios.estimate("a/t", 101) == 26


def test_the_ratio_is_learnt_and_long_prompts_weigh_more() -> None:
    ratios = Ratios()
    ratios.learn("a/t", 10, Tokens(10))
    ratios.learn("a/t", 10_000, Tokens(2500))
    assert ratios.estimate("a/t", 10_000) == pytest.approx(2507, abs=3)


def test_old_prompts_are_forgotten() -> None:
    ratios = Ratios()
    for _ in range(100):
        ratios.learn("a/t", 1000, Tokens(900))
    for _ in range(100):
        ratios.learn("a/t", 1000, Tokens(200))
    assert ratios.estimate("a/t", 1000) == pytest.approx(200, abs=6)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        pytest.param(5000, 1000, id="never more than a token for a byte"),
        pytest.param(0, 10, id="never less than a token for a hundred bytes"),
    ],
)
def test_the_ratio_has_bounds(tokens: int, expected: int) -> None:
    ratios = Ratios()
    ratios.learn("a/t", 1000, Tokens(tokens))
    assert ratios.estimate("a/t", 1000) == expected


def test_a_tenant_without_history_takes_the_models_mean_and_one_with_history_its_own() -> None:
    ratios = Ratios()
    ratios.learn("a/dense", 1000, Tokens(800))
    assert ratios.estimate("a/new", 1000) == 800
    ratios.learn("a/new", 1000, Tokens(200))
    assert ratios.estimate("a/new", 1000) == 200
    assert ratios.estimate("a/dense", 1000) == 800


def test_nothing_is_learnt_from_an_empty_prompt() -> None:
    ratios = Ratios()
    ratios.learn("a/t", 0, Tokens(50))
    assert ratios.estimate("a/t", 1000) == 300


def test_the_tenant_that_was_silent_longest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratio_module, "MAX_KNOWN", 2)
    ratios = Ratios()
    for name in ("first", "second", "first", "third"):
        ratios.learn(name, 1000, Tokens(100 if name == "second" else 500))
    assert sorted(ratios._known) == ["first", "third"]
