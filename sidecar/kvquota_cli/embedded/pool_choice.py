"""Which of several pools the one engine is.

Decides the pool from what the files hold, what the engine says and what the user asked for, and says why. Pure.

Invariants:

1. In this order: the pool that was asked for, the pool whose model the engine serves, the only pool that TenantQuotas
   refer to, the only pool. Where none of these gives exactly one, nobody guesses: all pools are named.
2. A pool whose model the engine does not serve is taken with a warning: clients would be answered 404 by the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A pool of the files: `model` is what clients send, `quotas` the number of TenantQuotas that refer to it."""

    namespace: str
    name: str
    model: str
    quotas: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} (model {self.model})"


@dataclass(frozen=True, slots=True)
class Choice:
    """The pool, why it is this one, and what is odd about it (None: nothing)."""

    pool: Candidate
    why: str
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for; None where nothing was said."""

    pool: str | None = None
    namespace: str | None = None


class NoChoiceError(ValueError):
    """No pool, or not exactly one; the text says what to give."""


def choose(candidates: Sequence[Candidate], wish: Wish, served: Sequence[str] | None) -> Choice:
    """The pool to serve. `served`: the models that the engine lists, None when it does not answer.

    Raises NoChoiceError.
    """
    pools = sorted(each for each in candidates if wish.namespace in (None, each.namespace))
    if not pools:
        raise NoChoiceError(_none(candidates, wish))
    choice = _wished(pools, wish) if wish.pool else _found(pools, served)
    return Choice(choice.pool, choice.why, mismatch(choice.pool, served))


def _none(candidates: Sequence[Candidate], wish: Wish) -> str:
    if not candidates:
        return "the manifests hold no valid ModelPool: add one; `kvquota check` says what is wrong with what is there"
    namespaces = ", ".join(sorted({each.namespace for each in candidates}))
    return f"no ModelPool in namespace {wish.namespace}: give --namespace one of {namespaces}"


def _wished(pools: Sequence[Candidate], wish: Wish) -> Choice:
    named = [each for each in pools if wish.pool in (each.name, f"{each.namespace}/{each.name}")]
    if len(named) == 1:
        return Choice(named[0], "--pool names it")
    if named:
        raise NoChoiceError(f"{wish.pool} is in several namespaces: give --pool one of {_listed(named)}")
    raise NoChoiceError(f"there is no ModelPool {wish.pool}: give --pool one of {_listed(pools)}")


def _found(pools: Sequence[Candidate], served: Sequence[str] | None) -> Choice:
    matching = [each for each in pools if served is not None and each.model in served]
    if len(matching) == 1:
        return Choice(matching[0], f"the engine serves its model {matching[0].model}")
    referred = [each for each in matching or pools if each.quotas]
    if len(referred) == 1:
        return Choice(referred[0], "it is the only pool that TenantQuotas refer to")
    if len(pools) == 1:
        return Choice(pools[0], "it is the only pool")
    raise NoChoiceError(f"the manifests hold several pools: give --pool one of {_listed(pools)}")


def mismatch(pool: Candidate, served: Sequence[str] | None) -> str | None:
    """What is odd about this pool before an engine that serves these models; None when nothing is."""
    if served is None or pool.model in served:
        return None
    names = ", ".join(served) or "no model"
    return (
        f"the engine serves {names}, the pool {pool.name} is for {pool.model}: start the engine with "
        f"--served-model-name {pool.model}, or correct spec.model.name of the pool"
    )


def _listed(pools: Sequence[Candidate]) -> str:
    return ", ".join(str(each) for each in pools)
