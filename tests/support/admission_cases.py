"""Builders of single cases for the chain of admission rules."""

from __future__ import annotations

import inspect
from typing import Any

from bookkeeping import share
from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.memory.worth import Worth
from kvquota_sidecar.admission.case import Case, Demand, Holder, Pool


def case(
    *,
    prompt: int = 16,
    output: int | None = 16,
    reserve: int = 10,
    full: int | None = None,
    sequences: int = 1,
    **standing: Any,
) -> Case:
    """A request, and how its tenant and the pool stand: `standing` has what `pool` and `holder` take, and the tenant's
    limits."""
    limit, blocks = None if output is None else Tokens(output), Blocks(reserve if full is None else full)
    of_pool = {name: standing.pop(name) for name in tuple(standing) if name in _OF_POOL}
    return Case(Demand(Tokens(prompt), limit, sequences, blocks, Blocks(reserve)), holder(**standing), pool(**of_pool))


def holder(
    *, held: int = 0, running: int = 0, requests: int = 0, soft: int = 0, pressed: bool = False, **limits: Any
) -> Holder:
    """A tenant that is shed at 85 %; every wait is as many seconds as the amount that it is for."""
    return Holder(
        share=share(**limits),
        soft=Blocks(soft),
        held=Blocks(held),
        sequences=running,
        pressed=pressed,
        shed_percent=85.0,
        blocks_wait=float,
        sequences_wait=float,
        requests=requests,
    )


def pool(
    *,
    usable: int = 100,
    rank_usable: int | None = None,
    free: int | None = None,
    kept: int = 0,
    claimed: int = 0,
    other_softs: int = 0,
    lends_in: float = 0.0,
) -> Pool:
    """A pool of `usable` blocks, idle where nothing else is said; every wait is as many seconds as the blocks that it
    is for."""
    room = usable if free is None else free
    return Pool(
        name="llama-8b",
        usable=Blocks(usable),
        free=room,
        rank_usable=Blocks(usable if rank_usable is None else rank_usable),
        rank_free=room,
        reserve=Blocks(kept),
        claimed=Blocks(claimed),
        other_softs=Blocks(other_softs),
        worth=Worth((LayerGroup("Full", 16),), Tokens(32_768)),
        max_model_len=Tokens(32_768),
        shadow=False,
        wait=float,
        lends_in=lends_in,
    )


_OF_POOL = frozenset(inspect.signature(pool).parameters)
