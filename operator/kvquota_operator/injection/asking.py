"""Which pods asked, and which pool each belongs to.

Decides by labels alone. Pure. Invariants:

1. A pod without the label `kvquota.dev/inject: "true"` is never touched, whatever selects it.
2. A pod that several pools select is that of the oldest, as everywhere (`reconcile.pods`).

It does not know what is in a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kvquota_api.meta import GROUP, INJECT_LABEL
from kvquota_operator.reading.objects import StoredPool
from kvquota_operator.reading.pods import selects
from kvquota_operator.reconcile.observed import InvalidSeen
from kvquota_operator.reconcile.pods import pool_claim

INJECTED_ANNOTATION: Final = f"{GROUP}/injected"  # POOL/HASH: by which pool's plan; "-" where there was none
INJECTED_AS_ANNOTATION: Final = f"{GROUP}/injected-as"  # the name that the pod had then, PREFIX* of one made later
NO_PLAN: Final = "-"


def asks(pod: Mapping[str, Any]) -> bool:
    """Whether the pod asks to be put under quota."""
    return labels_of(pod).get(INJECT_LABEL) == "true"


def labels_of(pod: Mapping[str, Any]) -> Mapping[str, str]:
    return (pod.get("metadata") or {}).get("labels") or {}


def selecting(labels: Mapping[str, str], pools: Iterable[StoredPool]) -> tuple[StoredPool, ...]:
    """The pools that select a pod with these labels, the one that it belongs to first."""
    return tuple(
        sorted((pool for pool in pools if _selects(pool, labels)), key=lambda each: pool_claim(each.key, each.pool))
    )


def _selects(stored: StoredPool, labels: Mapping[str, str]) -> bool:
    """Of a pool that does not parse only the plain labels of its selector can be read; without any it selects none."""
    if isinstance(stored.pool, InvalidSeen):
        return bool(stored.labels) and all(labels.get(key) == value for key, value in stored.labels.items())
    return selects(stored.pool.spec.selector, labels)
