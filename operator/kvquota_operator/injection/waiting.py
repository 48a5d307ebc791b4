"""Pods of a pool that is new wait for its Secret.

A pod that starts before its pool has a Secret gets it late: the kubelet looks again after a minute and more, and until
then the sidecar lets no operator in. So such a pod is not let in yet. Decides how long. Pure. Invariants:

1. Only pods of a pool that was just made wait. What no operator ever does, for want of a right or of a leader, holds no
   pod back for longer: it starts then, and obeys its pool's failure policy.

It does not know whether the Secret is there.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from kvquota_api.model_pool import ModelPool
from kvquota_operator.injection.outcomes import Refused
from kvquota_operator.reconcile.manifests import pool_secret_name

NEW_SECONDS: Final = 60.0  # of a pool's life; a leader makes the Secret in 1 s, a first one leads after 10 s
RETRY_SECONDS: Final = 1


def is_new(pool: ModelPool, now: datetime) -> bool:
    """Whether its Secret may be on its way still; the two clocks may differ by a little."""
    created = pool.metadata.creation_timestamp
    return created is not None and abs((now - created).total_seconds()) < NEW_SECONDS


def not_yet(pool: ModelPool) -> Refused:
    name = pool.metadata.name
    return Refused(
        f"ModelPool {name} is new and its Secret {pool_secret_name(name)} is not there yet: try again in a moment",
        RETRY_SECONDS,
    )
