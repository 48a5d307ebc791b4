"""The conversation with one sidecar, and what is remembered of it.

One conversation: say which documents should be in force; where the answer shows that they are not, send those that
differ, and take the answer to that as the confirmation. Invariants:

1. A document travels only to a pod that does not have it.
2. Within one epoch an older sequence is ignored, and so is an epoch that began before the known one: a late answer
   never undoes a newer one.
3. A failure keeps the last good report with the time it came; what is stale is for the reader to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from kvquota_api import pod_config
from kvquota_api.pod_config import PodConfig, PoolIdentity
from kvquota_api.usage import InForce, SyncRequest, UsageReport
from kvquota_operator.ports import Channel, ChannelError, Clock, TokenNotYetError, TokenRefusedError
from kvquota_operator.reading.reports import relevant
from kvquota_operator.reconcile.observed import PodSeen, ReportSeen

NEW_SECONDS: Final = 60.0  # a node brings a Secret to a running pod within its sync period of one minute, mostly
NO_DIGEST: Final = ""  # what a sidecar without a document reports, and what is asked of one that should have none


@dataclass(frozen=True, slots=True)
class Documents:
    """What should be in force on one pod; None where the pool has nothing to say."""

    config: PodConfig | None
    identity: PoolIdentity | None

    def request(self) -> SyncRequest:
        """Only the digests."""
        return SyncRequest(
            config_digest=self.config.digest if self.config else NO_DIGEST,
            identity_digest=self.identity.digest if self.identity else NO_DIGEST,
        )

    def lacking(self, in_force: InForce) -> SyncRequest | None:
        """A request with the documents that are not in force; None when all of them are."""
        config, identity = self._differing(in_force)
        if config is None and identity is None:
            return None
        request = self.request()
        if config is not None:
            request = msgspec.structs.replace(request, config=msgspec.Raw(pod_config.encode(config)))
        if identity is not None:
            request = msgspec.structs.replace(request, identity=msgspec.Raw(pod_config.encode(identity)))
        return request

    def are_in(self, in_force: InForce) -> bool:
        """Whether all of them are in force."""
        return self._differing(in_force) == (None, None)

    def _differing(self, in_force: InForce) -> tuple[PodConfig | None, PoolIdentity | None]:
        config, identity = self.config, self.identity
        return (
            config if config is not None and config.digest != in_force.config_digest else None,
            identity if identity is not None and identity.digest != in_force.identity_digest else None,
        )


class PodMemory:
    """What is known of one pod from its own mouth."""

    def __init__(self) -> None:
        self._seen: ReportSeen | None = None
        self._asked_at: float | None = None
        self._first_asked_at: float | None = None
        self._behind_since: float | None = None

    @property
    def behind_since(self) -> float | None:
        """Since when the pod has had in force no config that was wanted then or later; None where it has one."""
        return self._behind_since

    @property
    def seen(self) -> ReportSeen | None:
        """The last good report and the last error; None until the pod was asked once."""
        return self._seen

    def due(self, documents: Documents, now: float, period: float) -> bool:
        """Whether the pod should be asked now: not asked for a period, or known to lack a document."""
        if self._asked_at is None or now - self._asked_at >= period:
            return True
        report = self._seen.report if self._seen else None
        return report is not None and not documents.are_in(report.in_force)

    def asked(self, now: float) -> None:
        self._asked_at = now
        if self._first_asked_at is None:
            self._first_asked_at = now

    def is_new(self, now: float) -> bool:
        """Whether the pod was first asked less than a minute ago."""
        return self._first_asked_at is None or now - self._first_asked_at < NEW_SECONDS

    def should_have(self, config: PodConfig, now: float) -> None:
        """The pod should have `config` in force now."""
        report = self._seen.report if self._seen else None
        if report is not None and report.in_force.config_digest == config.digest:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = now

    def has(self, config: PodConfig | None, in_force: InForce) -> None:
        """The pod has said what is in force, when asked for `config`."""
        if config is not None and config.digest == in_force.config_digest:
            self._behind_since = None

    def accept(self, report: UsageReport, now: float) -> None:
        """Take a report, unless a newer one is known."""
        known = self._seen.report if self._seen else None
        if known is None or _newer(report, known):
            self._seen = ReportSeen(report=report, received_at=now)

    def fail(self, error: ChannelError) -> None:
        """Remember why the pod could not be asked, beside its last good report. It is due again at once."""
        self._asked_at = None
        last = self._seen or ReportSeen()
        self._seen = ReportSeen(report=last.report, received_at=last.received_at, error=str(error))


def _newer(report: UsageReport, known: UsageReport) -> bool:
    if report.epoch == known.epoch:
        return report.sequence > known.sequence
    return report.started_at >= known.started_at


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one pod is told, and where its answers go."""

    pod: PodSeen
    token: str
    documents: Documents
    memory: PodMemory

    async def hold(self, channel: Channel, clock: Clock) -> None:
        """Once. Raises ChannelError after the memory has it."""
        self.memory.asked(clock.monotonic())
        try:
            report = await self._ask(channel, clock, self.documents.request())
            lacking = self.documents.lacking(report.in_force)
            if lacking is not None:
                await self._ask(channel, clock, lacking)
        except ChannelError as error:
            self.memory.fail(error)
            if isinstance(error, TokenRefusedError) and self.memory.is_new(clock.monotonic()):
                raise TokenNotYetError(f"not yet: {error}") from error
            raise

    async def _ask(self, channel: Channel, clock: Clock, request: SyncRequest) -> UsageReport:
        report = relevant(await channel.sync(self.pod, self.token, request), self.documents.config)
        self.memory.accept(report, clock.monotonic())
        self.memory.has(self.documents.config, report.in_force)
        return report
