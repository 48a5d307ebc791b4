"""What is said of one plan, however it is printed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from kvquota_api.amounts import Tokens
from kvquota_api.memory.advice import FLAGS, Advice, advise
from kvquota_api.memory.capacity import Capacity, capacity_of
from kvquota_api.memory.planning import CardPlan
from kvquota_cli.planning.unheeded import unheeded

USUAL_CONTEXTS: Final = (2**10, 2**13, 2**15, 2**17, 2**20)  # tokens: 1k, 8k, 32k, 128k, 1m


@dataclass(frozen=True, slots=True)
class Report:
    """The plan of the model `name`, the capacity by length, what would fit or hold more, and what changes nothing."""

    name: str
    plan: CardPlan
    capacity: tuple[Capacity, ...]
    advice: tuple[Advice, ...]
    unheeded: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the engine would refuse or change by itself, what changes nothing, and why the card is not divided."""
        cache = () if self.plan.cache is None else self.plan.cache.warnings
        own = (*cache, *self.unheeded)
        undivided = self.plan.undivided
        return own if undivided is None else (*own, f"the card is not divided into its parts: {undivided}")


def report(
    name: str, plan: CardPlan, contexts: Iterable[Tokens] | None, asked: Collection[str] = frozenset()
) -> Report:
    """`contexts`: lengths to count; None: the usual ones up to the longest request, and that one. `asked`: fields of
    EngineInputs that options were given for."""
    return Report(name, plan, _capacity(plan, contexts), advise(plan, FLAGS), unheeded(plan, asked))


def _capacity(plan: CardPlan, contexts: Iterable[Tokens] | None) -> tuple[Capacity, ...]:
    if plan.cache is None:
        return ()
    if contexts is not None:
        return capacity_of(plan.cache, contexts)
    longest = plan.cache.max_model_len
    usual = {each for each in USUAL_CONTEXTS if each < longest}
    return capacity_of(plan.cache, (Tokens(each) for each in sorted({*usual, longest})))
