"""When clients come back that were refused together: not at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvquota_sidecar.refusals import Refusal
from kvquota_sidecar.refusals.refusal import MAX_RETRY_AFTER

SPREAD: Final = 0.25  # of a wait: how far clients that were refused together come back apart

Spread = Callable[[Refusal], Refusal]


def spread(refusal: Refusal, jitter: Callable[[], float]) -> Refusal:
    """The refusal with a wait that differs from client to client; `jitter` gives a new number from 0 to 1."""
    if refusal.retry_after is None:
        return refusal
    wait = min(MAX_RETRY_AFTER, refusal.retry_after * (1 + SPREAD * jitter()))
    return Refusal(refusal.code, refusal.status, refusal.message, wait, refusal.retryable, refusal.param)
