"""What the controller needs from the world: a cluster, a channel to the pods, a clock, and somebody who counts.

The controller knows nothing else of Kubernetes or HTTP: the same loop serves a cluster, a folder of files and a test.

Every failure that a port foresees is a PortError and is tried again later. Whatever else a port raises is a bug: it is
tried again too, and told each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Protocol

from kvquota_api.pod_config import PodConfig
from kvquota_api.usage import SyncRequest, UsageReport
from kvquota_operator.reconcile.observed import Observed, Orphans, PodSeen, PoolKey
from kvquota_operator.reconcile.plan import EventWanted, SecretWanted


class PortError(Exception):
    """A foreseen failure; `reason` is one PascalCase word, `retry_after` the seconds that the other side asks for."""

    reason: ClassVar[str] = "Unknown"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ClusterError(PortError):
    """The API server did not do what was asked."""


class UnreachableError(ClusterError):
    """Nobody answers at the API server's address, or it says that it is not able to answer now."""

    reason = "Unreachable"


class ClusterTimeoutError(ClusterError):
    """The API server did not answer in time; what was asked may have happened."""

    reason = "Timeout"


class ThrottledError(ClusterError):
    """The API server asks to come back later."""

    reason = "Throttled"


class ConflictError(ClusterError):
    """The object changed since it was read."""

    reason = "Conflict"


class ForbiddenError(ClusterError):
    """The operator's account lacks a right."""

    reason = "Forbidden"


class TerminatingError(ClusterError):
    """The object's namespace is being deleted: nothing new is made in it, and soon nothing is there at all."""

    reason = "NamespaceTerminating"


class NotOursError(ClusterError):
    """An object with the wanted name exists and belongs to somebody else; it is left alone."""

    reason = "NotOurs"


class VanishedError(ClusterError):
    """The object, or its namespace, is not there (any more)."""

    reason = "Vanished"


class NotServedError(VanishedError):
    """The path is not known: the kind is not installed, or something else than the API server answered.

    Of an object that was there it says nothing.
    """

    reason = "NotServed"


class ExpiredError(ClusterError):
    """What a list or a watch wants to go on from is too old: it has to begin anew."""

    reason = "Expired"


class PutBackError(ExpiredError):
    """The API server's versions are behind what it said before: its store was put back to an earlier state."""

    reason = "PutBack"


class RefusedError(ClusterError):
    """The API server finds the content wrong: most often a CRD that is older than the operator."""

    reason = "Refused"


class ChannelError(PortError):
    """A sidecar did not answer a sync with a report."""


class PodUnreachableError(ChannelError):
    """Nobody listens at the pod's address, or the connection broke."""

    reason = "PodUnreachable"


class PodTimeoutError(ChannelError):
    """The sidecar did not answer in time."""

    reason = "PodTimeout"


class TokenRefusedError(ChannelError):
    """The sidecar does not accept the pool's token."""

    reason = "TokenRefused"


class TokenNotYetError(TokenRefusedError):
    """The same of a pod that is new: its node brings it the token within a minute or two."""


class BadAnswerError(ChannelError):
    """What answered is no sidecar of a version that this operator understands."""

    reason = "BadAnswer"


class NotLeadingError(ClusterError, ChannelError):
    """Another replica leads, or may: this one writes nothing (any more)."""

    reason = "NotLeading"


class Cluster(Protocol):
    """The objects of Kubernetes, or whatever stands in for them. Every method raises ClusterError."""

    async def observe(self, pool: PoolKey) -> Observed | None:
        """The pool and its surroundings with no reports in it (the controller has those); None when it is gone.

        The pool's Secret is made, with a fresh token and pepper, where it is missing.
        """
        ...

    async def orphans(self, pool: PoolKey) -> Orphans:
        """The quotas that name `pool`, for one that `observe` found gone."""
        ...

    async def apply_config(self, config: PodConfig) -> None:
        """Store the durable copy of one pod's config; it goes when the pod goes."""
        ...

    async def apply_secret(self, pool: PoolKey, wanted: SecretWanted) -> None:
        """Store the pool's token, pepper and identity."""
        ...

    async def write_pool_status(self, pool: PoolKey, status: Mapping[str, Any]) -> None:
        """Make `status` the whole status of the pool, whoever wrote another one."""
        ...

    async def write_quota_status(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        """Make `status` the whole status of the quota, whoever wrote another one."""
        ...

    async def record(self, namespace: str, event: EventWanted) -> None:
        """Tell people about an object of the namespace. What was just told is not told again."""
        ...


class Channel(Protocol):
    """The way to the sidecars."""

    async def sync(self, pod: PodSeen, token: str, request: SyncRequest) -> UsageReport:
        """One `POST /v1/sync`. Raises ChannelError."""
        ...


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def now(self) -> datetime:
        """UTC."""
        ...


class Telemetry(Protocol):
    """Counts what the controller does. `kind` is one of Pass, Observe, Secret, Config, Sync, Status, Event."""

    def passed(self, seconds: float) -> None:
        """One pass over one pool ended after `seconds`."""
        ...

    def done(self, kind: str) -> None:
        """One thing of this kind was done."""
        ...

    def failed(self, kind: str, reason: str) -> None:
        """One thing of this kind failed and will be tried again; `reason` is "Bug" where nobody foresaw it."""
        ...
