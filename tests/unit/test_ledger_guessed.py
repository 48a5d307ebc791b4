"""Prompts that nobody counted in time count as exact, and nobody is told so."""

from __future__ import annotations

import pytest

from bookkeeping import BLOCK, admit, exact, open_books, sample, share
from kvquota_api.amounts import Tokens
from kvquota_sidecar.ledger.books import Ask, AskedPrompt, Books, Refusal, Waiting


def guessed(tokens: int) -> AskedPrompt:
    """A prompt that is taken for so many tokens."""
    return AskedPrompt(Tokens(tokens), Tokens(tokens), guessed=True)


def refused(books: Books, *prompts: AskedPrompt) -> str:
    answer = books.ask(Ask("inference/search", prompts, 1, Tokens(BLOCK), growth="Seen"), 0.0)
    assert isinstance(answer, Refusal)
    return answer.message


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        pytest.param([guessed(1600)], "about 1,616", id="one that is guessed"),
        pytest.param([exact(1600)], "1,616", id="one that was counted"),
        pytest.param([guessed(784), exact(784)], "about 1,600", id="the first of two is guessed"),
        pytest.param([exact(784), guessed(784)], "about 1,600", id="the last of two is guessed"),
        pytest.param([exact(784), exact(784)], "1,600", id="both were counted"),
    ],
)
def test_a_guess_is_told_as_one(prompts: list[AskedPrompt], said: str) -> None:
    beyond_ever = refused(open_books(share(hard_blocks=90)), *prompts)
    assert beyond_ever.startswith(f"The request needs {said} tokens of KV cache and TenantQuota search")
    books = open_books(share(hard_blocks=110))
    admit(books, "search", 100)
    assert f"and this request asks for {said}. " in refused(books, *prompts)


def missed(*, known: bool | None) -> str:
    """What one is told that waits in vain, having asked by its estimate; `known`: whether it was counted then."""
    books = open_books(share(soft_blocks=400))
    books.observe(sample(used=1000), 0.0)
    prompt = AskedPrompt(Tokens(1000), Tokens(1584))
    answer = books.ask(Ask("inference/search", (prompt,), 1, Tokens(BLOCK), growth="Seen"), 0.0)
    assert isinstance(answer, Waiting)
    if known is not None:
        books.count(answer.ticket, [Tokens(1584)], 0.5, guessed=not known)
    (ending,) = books.turn(2.0).missed
    return ending.refusal.message


@pytest.mark.parametrize(
    ("known", "said"),
    [
        pytest.param(None, "about 1,024", id="nobody has said yet"),
        pytest.param(True, "1,600", id="it was counted"),
        pytest.param(False, "about 1,600", id="nobody could say in time"),
    ],
)
def test_one_that_waits_is_told_how_well_it_is_known(known: bool | None, said: str) -> None:
    assert f"and asks for {said} tokens of KV cache" in missed(known=known)
