"""What is learnt from finished requests: tokens per byte, and the length of outputs."""

from __future__ import annotations

import pytest

from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate import ratio as ratio_module
from kvquota_sidecar.estimate.outputs import WINDOW, Outputs
from kvquota_sidecar.estimate.ratio import WINDOW as WINDOW_OF_RATIOS
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
        pytest.param((), (100,) * 30, None, id="nor when all were ended"),
        pytest.param((4,) * 19, (), None, id="nor before twenty finished"),
        pytest.param((4,) * 19, (4,) * 100, None, id="those that were ended do not stand in for them"),
        pytest.param((7,) * 20, (), 7, id="twenty finished outputs are enough"),
        pytest.param(tuple(range(1, 21)), (), 18, id="eighteen of twenty are at most the eighteenth"),
        pytest.param(tuple(range(1, 101)), (), 90, id="ninety of a hundred"),
        pytest.param((10,) * 18 + (50,) * 2, (), 10, id="two long ones of twenty are beyond"),
        pytest.param((10,) * 20, (10,) * 20, None, id="half of them might have gone on for ever"),
        pytest.param((10,) * 20 + (90,), (20,) * 20, 90, id="what was ended early leans on the longer finished ones"),
        pytest.param(tuple(range(1, 21)), (0,) * 50, 18, id="ended before any output: the finished ones decide"),
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


def learnt(*prompts: tuple[int, int], tenant: str = "a/t") -> Ratios:
    """Of prompts of (bytes, tokens)."""
    ratios = Ratios()
    for size, tokens in prompts:
        ratios.learn(tenant, size, Tokens(tokens))
    return ratios


def test_before_anything_is_known_a_byte_is_three_tenths_of_a_token() -> None:
    assert Ratios().estimate("a/t", 1000) == 300


def test_a_prompt_has_at_least_one_token() -> None:
    assert Ratios().estimate("a/t", 0) == 1


def test_an_estimate_is_rounded_up() -> None:
    assert learnt((1000, 500)).estimate("a/t", 1001) == 501


def test_one_dense_prompt_raises_the_estimate_at_once_and_up_to_a_token_for_a_byte() -> None:
    assert learnt((60_000, 30_000)).estimate("a/t", 60_000) == 30_000
    assert learnt((60_000, 70_000)).estimate("a/t", 60_000) == 60_000


def test_nobody_trains_the_ratio_low() -> None:
    """A tenant that fills prompts with what the engine ignores, or with spaces, and then sends dense text."""
    assert learnt(*[(40_000, 40)] * 60).estimate("a/t", 40_000) == 12_000


def test_the_worst_of_the_last_prompts_counts_and_older_ones_do_not() -> None:
    ratios = learnt((1000, 900), *[(1000, 500)] * (WINDOW_OF_RATIOS - 1))
    assert ratios.estimate("a/t", 1000) == 900
    ratios.learn("a/t", 1000, Tokens(500))
    assert ratios.estimate("a/t", 1000) == 500


@pytest.mark.parametrize(
    ("short", "long", "size", "expected"),
    [
        pytest.param([(124, 41)], [], 10_000, 4 + 3000, id="what short ones have beyond three tenths is added"),
        pytest.param([(124, 30)], [], 10_000, 3000, id="never less than nothing"),
        pytest.param([(124, 5000)], [], 10_000, 512 + 3000, id="never more than the longest system prompt"),
        pytest.param([(130, 454)], [(522, 555)], 10_000, 415 + 3000, id="what is added makes no prompt dense"),
        pytest.param([], [(522, 261)], 10_000, 5000, id="long ones are taken for what they are"),
        pytest.param([(500, 500)], [], 500, 500, id="a short dense prompt is estimated at what it is"),
        pytest.param([(200, 150)], [(600, 690)], 600, 690, id="and so is a long one beside it"),
        pytest.param([(511, 511)], [], 512, 358 + 154, id="short below 512 bytes"),
        pytest.param([(512, 512)], [], 512, 512, id="long from there"),
    ],
)
def test_short_prompts_tell_what_a_template_adds_and_long_ones_how_dense_the_text_is(
    short: list[tuple[int, int]], long: list[tuple[int, int]], size: int, expected: int
) -> None:
    assert learnt(*short, *long).estimate("a/t", size) == expected


def test_short_prompts_do_not_push_out_what_long_ones_have_told() -> None:
    assert learnt((1000, 900), *[(100, 30)] * 1000).estimate("a/t", 1000) == 900


def test_a_tenant_learns_from_itself_alone() -> None:
    ratios = learnt((1000, 800), tenant="a/dense")
    assert ratios.estimate("a/new", 1000) == 300
    ratios.learn("a/new", 1000, Tokens(400))
    assert [ratios.estimate(name, 1000) for name in ("a/new", "a/dense", "a/dense")] == [400, 800, 800]


def test_nothing_is_learnt_from_an_empty_prompt() -> None:
    assert learnt((0, 50)).estimate("a/t", 1000) == 300


def test_a_count_beyond_all_bounds_is_kept_as_the_most_that_counts() -> None:
    assert learnt((1000, 10**30)).estimate("a/t", 1000) == 1000


def test_the_tenant_that_was_silent_longest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratio_module, "MAX_KNOWN", 2)
    ratios = Ratios()
    for name in ("first", "second", "first", "third"):
        ratios.learn(name, 1000, Tokens(500))
    assert sorted(ratios._known) == ["first", "third"]


def test_of_each_tenant_no_more_than_two_windows_are_kept() -> None:
    line = learnt(*[(1000, 300), (100, 30)] * 1000)._known["a/t"]
    assert [len(list(window.pairs())) for window in (line._long, line._short)] == [WINDOW_OF_RATIOS] * 2
