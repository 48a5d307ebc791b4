"""Names that embedded mode gives to what a cluster would have: the pod, the pool's Secret, uids."""

from __future__ import annotations

import secrets
import uuid
from typing import Final

from kvquota_operator.reconcile.observed import PodSeen, SecretSeen

ENGINE_NAME: Final = "engine"  # of the pod that stands for the engine
LOOPBACK: Final = "127.0.0.1"
SECRET_BYTES: Final = 32  # of token and pepper: 64 hexadecimal digits


def new_uid() -> str:
    """A fresh uid, as an API server makes them."""
    return str(uuid.uuid4())


def engine_pod(namespace: str) -> PodSeen:
    """The one pod, governed and ready: the sidecar in this process stands before the engine."""
    return PodSeen(
        namespace=namespace,
        name=ENGINE_NAME,
        uid=new_uid(),
        ip=LOOPBACK,
        ready=True,
        deleting=False,
        governed=True,
    )


def new_secret() -> SecretSeen:
    """Token and pepper of this run."""
    return SecretSeen(token=secrets.token_hex(SECRET_BYTES), pepper=secrets.token_hex(SECRET_BYTES))
