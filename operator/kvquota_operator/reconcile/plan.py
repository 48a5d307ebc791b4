"""What one reconcile wants: the whole outcome as values, for the shell to bring about.

Decides nothing.

Invariants:

1. It is the wanted state, not a list of steps: applying it twice is applying it once.
2. A status is whole, and without the fields that nobody measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kvquota_api.pod_config import PodConfig, PoolIdentity
from kvquota_operator.reconcile.observed import Kind, SecretSeen


@dataclass(frozen=True, slots=True)
class SecretWanted:
    token: str = field(repr=False)
    pepper: str = field(repr=False)
    identity: PoolIdentity = field(repr=False)

    def is_stored_in(self, stored: SecretSeen | None) -> bool:
        """Whether a Secret has all of it."""
        wanted = (self.token, self.pepper, self.identity)
        return stored is not None and (stored.token, stored.pepper, stored.identity) == wanted


@dataclass(frozen=True, slots=True)
class EventWanted:
    """One Kubernetes Event about an object of the pool's namespace; reason and message are those of a condition."""

    kind: Kind
    name: str
    uid: str
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`configs`: sealed, one per governed live pod, by name; empty where no plan was ever valid. A pod whose first
    one is too large to be stored has none.

    `secret`: None until the pool has a token and a pepper. `quota_statuses`: by the quota's name, also of those
    that do not parse.
    """

    configs: tuple[PodConfig, ...]
    secret: SecretWanted | None
    pool_status: dict[str, Any]
    quota_statuses: Mapping[str, dict[str, Any]]
    events: tuple[EventWanted, ...]


@dataclass(frozen=True, slots=True)
class OrphansPlan:
    """What is wanted of the quotas of a pool that is not there; `quota_statuses` as in Plan."""

    quota_statuses: Mapping[str, dict[str, Any]]
    events: tuple[EventWanted, ...]
