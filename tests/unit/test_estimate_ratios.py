"""Tokens of prompts: the honest estimate, the bounds around it, and how wrong it is."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate import ratio as ratio_module
from kvquota_sidecar.estimate.density import CLASSES, density
from kvquota_sidecar.estimate.prompts import PromptSize
from kvquota_sidecar.estimate.ratio import MAX_ADDED, WINDOW, WINDOW_OF_ALL, EstimateError, Ratios

RECORDED = Path(__file__).parents[1] / "data" / "estimate" / "tokens_of_texts.json"


def text(size: int, dense: int = 0, sure: int | None = None) -> PromptSize:
    return PromptSize(size, size if sure is None else sure, density=dense)


def learnt(*prompts: tuple[PromptSize, int], tenant: str = "a/t") -> Ratios:
    ratios = Ratios()
    for prompt, tokens in prompts:
        ratios.learn(tenant, [prompt], Tokens(tokens))
    return ratios


def three(ratios: Ratios, prompt: PromptSize, tenant: str = "a/t") -> tuple[int, int, int]:
    return ratios.estimate(tenant, prompt), ratios.worst(prompt), ratios.most(prompt)


def test_before_anything_is_known_it_is_three_tenths_half_and_one_token_for_a_byte() -> None:
    assert three(Ratios(), text(1000)) == (300, 500, 1000)


def test_token_ids_are_what_they_are() -> None:
    assert three(learnt((text(1000), 900)), PromptSize(50, 50, Tokens(7))) == (7, 7, 7)


def test_a_prompt_has_at_least_one_token() -> None:
    assert three(Ratios(), text(0)) == (1, 1, 1)


def test_images_come_on_top() -> None:
    assert three(Ratios(), PromptSize(1000, 1000, media=Tokens(5000))) == (5300, 5500, 6000)
    assert three(Ratios(), PromptSize(0, 0, media=Tokens(5000))) == (5001, 5001, 5001)


def test_the_estimate_is_what_the_median_of_the_prompts_like_it_had() -> None:
    ratios = learnt(*[(text(1000), tokens) for tokens in (200, 210, 190, 900, 205, 195, 50, 200)] * 8)
    assert ratios.estimate("a/t", text(1000)) == pytest.approx(200, rel=0.06)


def test_one_prompt_founds_the_estimate_and_many_hold_it() -> None:
    ratios = learnt((text(1000), 800))
    assert ratios.estimate("a/t", text(1000)) == 800
    for _ in range(100):
        ratios.learn("a/t", [text(1000)], Tokens(250))
    assert ratios.estimate("a/t", text(1000)) == 250
    ratios.learn("a/t", [text(1000)], Tokens(1000))
    assert ratios.estimate("a/t", text(1000)) == 257


def test_texts_of_another_density_or_length_learn_by_themselves() -> None:
    ratios = learnt((text(5000, 2), 1000), (text(5000, 9), 2500), (text(150, 2), 75))
    estimates = [ratios.estimate("a/t", each) for each in (text(5000, 2), text(5000, 9), text(150, 2))]
    assert estimates == [1000, 2500, 75]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(text(5000, 4), 1000, id="the nearest density of that length"),
        pytest.param(text(5000, 19), 2500, id="from the other side"),
        pytest.param(text(2000, 2), 400, id="the same density of the nearest length"),
        pytest.param(text(1000, 2), 200, id="of the longer one of two, whose template counts for less"),
        pytest.param(text(150, 2), 75, id="itself where it is known"),
        pytest.param(text(150, 12), 75, id="a density far off, where the next length is farther"),
    ],
)
def test_what_was_never_seen_is_taken_for_the_nearest_that_was(asked: PromptSize, expected: int) -> None:
    ratios = learnt((text(5000, 2), 1000), (text(5000, 9), 2500), (text(150, 2), 75))
    assert ratios.estimate("a/t", asked) == expected


def test_a_tenant_learns_from_itself_alone() -> None:
    ratios = learnt((text(1000), 800), tenant="a/dense")
    assert ratios.estimate("a/new", text(1000)) == 300
    ratios.learn("a/new", [text(1000)], Tokens(400))
    assert [ratios.estimate(name, text(1000)) for name in ("a/new", "a/dense")] == [400, 800]


def test_tokens_are_weighed_against_what_surely_reached_the_prompt() -> None:
    """Nobody trains the ratio low by what the engine ignores."""
    assert learnt((text(40_000, sure=1000), 250)).estimate("a/t", text(40_000)) == 10_000


def test_several_prompts_of_one_request_are_learnt_from_together() -> None:
    ratios = Ratios()
    ratios.learn("a/t", [text(1000), text(3000)], Tokens(800))
    assert ratios.estimate("a/t", text(2000)) == 400


@pytest.mark.parametrize(
    "prompts",
    [
        pytest.param([], id="no prompts"),
        pytest.param([text(0)], id="an empty one"),
        pytest.param([PromptSize(1000, 1000, Tokens(10))], id="token ids"),
        pytest.param([text(1000), PromptSize(1000, 1000, Tokens(10))], id="token ids beside a text"),
        pytest.param([PromptSize(1000, 1000, media=Tokens(10))], id="an image"),
    ],
)
def test_nothing_is_learnt_where_bytes_say_nothing(prompts: list[PromptSize]) -> None:
    ratios = Ratios()
    ratios.learn("a/t", prompts, Tokens(900))
    assert (three(ratios, text(1000)), ratios.error()) == ((300, 500, 1000), None)


def test_no_estimate_passes_the_upper_bound() -> None:
    ratios = learnt((text(1000, sure=100), 1000), (text(100, sure=1), 10**30))
    for size in (0, 1, 10, 300, 5000):
        estimate, worst, most = three(ratios, text(size))
        assert 1 <= estimate <= most
        assert 1 <= worst <= most


def test_what_the_template_adds_is_learnt_for_all_tenants_and_bounded() -> None:
    assert learnt((text(150), 430), tenant="a/other").most(text(1000)) == 1000 + 280
    assert learnt((text(150), 10**30)).most(text(1000)) == 1000 + MAX_ADDED
    assert learnt((text(150), 430), (text(150), 40)).most(text(1000)) == 1000 + 280


def test_the_worst_ratio_is_the_most_that_the_model_has_ever_shown_for_a_long_prompt() -> None:
    ratios = learnt((text(1000), 900), *[(text(1000), 200)] * 500, tenant="a/other")
    assert ratios.worst(text(10_000)) == 9000
    assert learnt((text(511), 511)).worst(text(10_000)) == 5000
    assert learnt((text(512), 512)).worst(text(10_000)) == 10_000


def test_the_error_is_that_of_the_estimate_before_it_was_learnt_from() -> None:
    ratios = learnt((text(1000), 200), (text(1000), 250))
    assert ratios.error("a/t") == EstimateError(p50=0.5, p90=0.5, count=2)
    assert ratios.error("a/other") is None
    assert Ratios().error() is None


def test_the_error_of_all_is_over_all_tenants() -> None:
    ratios = Ratios()
    ratios.learn("a/one", [text(1000)], Tokens(200))
    ratios.learn("a/two", [text(1000)], Tokens(300))
    assert ratios.error() == EstimateError(p50=0.5, p90=0.5, count=2)
    assert ratios.error("a/two") == EstimateError(0, 0, 1)


def test_the_error_is_of_the_last_prompts() -> None:
    ratios = learnt((text(1000), 100), *[(text(1000), 300)] * (WINDOW_OF_ALL + 50))
    assert ratios.error("a/t") == EstimateError(0, 0, WINDOW)
    assert ratios.error() == EstimateError(0, 0, WINDOW_OF_ALL)


@pytest.mark.interpreted  # a bound that is lowered: compiled, it is part of the code
def test_the_tenant_that_was_silent_longest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratio_module, "MAX_KNOWN", 2)
    ratios = Ratios()
    for name in ("first", "second", "first", "third"):
        ratios.learn(name, [text(1000)], Tokens(500))
    assert sorted(ratios._known) == ["first", "third"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param("", 0, id="nothing"),
        pytest.param("It was a bright cold day and the clocks struck", 0, id="words alone"),
        pytest.param("a, b", 5, id="one mark in four bytes"),
        pytest.param("1234567890", CLASSES - 1, id="digits"),
        pytest.param("日本語の文章", CLASSES - 1, id="another script"),
        pytest.param("word " * 1000, 0, id="a long text"),
        pytest.param("word " * 100 + "1" * 5000 + "word " * 100, 16, id="a long one by samples of it"),
        pytest.param("1" * 2500 + " " * 2500, CLASSES // 2, id="from all of its parts"),
    ],
)
def test_the_density_of_a_text(given: str, expected: int) -> None:
    assert density(given) == expected


@pytest.mark.parametrize("tokenizer", ["tekken v3", "sentencepiece v3"])
@pytest.mark.parametrize("order", range(3))
def test_on_real_texts_of_all_kinds_mixed_the_median_error_is_below_a_tenth(tokenizer: str, order: int) -> None:
    """Recorded: prose, Markdown, Python, C, JSON, 200 to 70,000 bytes each, with the tokens that Mistral's tokenizers
    make of them. One tenant sends them all; a third of them is there to learn from."""
    rows = json.loads(RECORDED.read_text())[tokenizer]
    random.Random(order).shuffle(rows)
    ratios = Ratios()
    errors = []
    for size, dense, tokens in rows:
        prompt = text(size + 124, dense)
        errors.append(abs(ratios.estimate("a/t", prompt) / (tokens + 25) - 1))
        ratios.learn("a/t", [prompt], Tokens(tokens + 25))
    late = sorted(errors[len(errors) // 3 :])
    assert late[len(late) // 2] < 0.1
    told = ratios.error()
    assert told is not None
    assert told.p50 < 0.1
