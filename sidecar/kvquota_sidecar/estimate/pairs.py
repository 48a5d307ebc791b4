"""The prompts of pairs: what is ranked or scored stands beside a query in each.

Decides the size of each pair. Pure, and linear in the length of the body.

Invariants:

1. Each pair is a prompt of its own and holds both texts whole: engines that put them into one sequence do that, and for
   those that embed each by itself it is too much, never too little.
2. What could be paired in two ways is refused.

It does not know what the template writes between them, beside an allowance.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec

from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.bodies import Rerank, Score
from kvquota_sidecar.estimate.density import density
from kvquota_sidecar.estimate.prompts import TEMPLATE_SIZE, PromptSize, Values, field_value, several
from kvquota_sidecar.estimate.weighing import PartCount, PromptError, Terms, Weight, converted, each, text_size, within

_SIDES: Final = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))


def rerank_prompts(body: Rerank, fields: Values, terms: Terms) -> tuple[PromptSize, ...]:
    """A prompt for each document: the query, and the document. Raises PromptError."""
    return _pairs(body, fields, terms, ("query", body.query), ("documents", body.documents))


def score_prompts(body: Score, fields: Values, terms: Terms) -> tuple[PromptSize, ...]:
    """A prompt for each pair of the two sides; a single text pairs with each of the other. Raises PromptError."""
    given = {name for sides in _SIDES for name in sides if name in fields}
    for first, second in _SIDES:
        if given == {first, second}:  # of two pairs an engine would take one, nobody knows which
            return _pairs(body, fields, terms, (first, getattr(body, first)), (second, getattr(body, second)))
    raise PromptError("must stand beside `text_2` and no other pair: send a text or a list of texts in each", "text_1")


def _pairs(
    body: Rerank | Score,
    fields: Values,
    terms: Terms,
    one_side: tuple[str, msgspec.Raw],
    other_side: tuple[str, msgspec.Raw],
) -> tuple[PromptSize, ...]:
    beside = text_size(body.instruction or "") + len(bytes(body.chat_template_kwargs))
    first, second = (_side(fields, name, raw, terms) for name, raw in (one_side, other_side))
    count = max(len(first), len(second))
    if len(first) not in {1, count} or len(second) not in {1, count}:
        raise PromptError(
            f"has {len(second)} texts and {one_side[0]!r} has {len(first)}: send one, or as many on both sides",
            other_side[0],
        )
    pairs = zip(first * (count // len(first)), second * (count // len(second)), strict=True)
    return tuple(_pair(one, other, beside) for one, other in pairs)


def _pair(one: PromptSize, other: PromptSize, beside: int) -> PromptSize:
    return PromptSize(
        one.size + other.size + beside + TEMPLATE_SIZE,
        one.sure + other.sure + TEMPLATE_SIZE,
        media=Tokens(one.media + other.media),
        density=max(one, other, key=lambda side: side.size).density,
    )


def _side(fields: Values, name: str, raw: msgspec.Raw, terms: Terms) -> list[PromptSize]:
    """The texts of one side of pairs; each may be an object with parts."""
    value = field_value(fields, name, raw, str | dict[str, Any] | list[str | dict[str, Any]])
    found: list[PromptSize] = []
    parts = PartCount()

    def weigh(one: Any) -> None:
        weight = Weight(terms, parts)
        if type(one) is dict:
            within(".content", partial(weight.content, one.get("content")))
        else:
            weight.text(one if type(one) is str else converted(one, str | dict[str, Any]))
        found.append(PromptSize(weight.size, weight.sure, None, Tokens(weight.media), density(weight.longest)))

    within(name, lambda: each(weigh, several(value)) if type(value) is list else weigh(value))
    return found
