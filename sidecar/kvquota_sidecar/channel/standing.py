"""How this pod stands: what is in force, whether it takes traffic, whether it should be sent any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvquota_api.meta import IDENTITY_KEY
from kvquota_api.pod_config import FailurePolicy, PodConfig
from kvquota_api.usage import Source, SyncRequest
from kvquota_sidecar.channel.adoption import Documents, offer_config, offer_identity
from kvquota_sidecar.channel.files import waiting_for
from kvquota_sidecar.clock import Clock
from kvquota_sidecar.proxy.draining import GRACE, Drain
from kvquota_sidecar.proxy.identity import Directory
from kvquota_sidecar.refusals import Code, Refusal, refuse
from kvquota_sidecar.telemetry.journal import Journal
from kvquota_sidecar.telemetry.tally import Tally

_NOT_OBEYED: Final = "this version does not know these fields and does not act on them: run the one that wrote them"


class Standing:
    """`adopt` is called with every config that comes into force, `keep` with every change of what is; `running` says
    how many requests run; `settled`, whether the engine is done with what this program knows nothing of, or was given
    the time for it."""

    def __init__(
        self,
        drain: Drain,
        *,
        policy: FailurePolicy,
        pod_uid: str,
        adopt: Callable[[PodConfig], None],
        keep: Callable[[Documents], None],
        running: Callable[[], int],
        settled: Callable[[], bool],
        clock: Clock,
        journal: Journal,
        tally: Tally,
    ) -> None:
        self.drain = drain
        self.policy = policy
        self._pod_uid = pod_uid
        self._adopt = adopt
        self._keep = keep
        self._running = running
        self._settled = settled
        self._clock = clock
        self._journal = journal
        self._tally = tally
        self.documents = Documents()
        self.directory: Directory | None = None

    @property
    def is_leaving(self) -> bool:
        """Whether the drain has begun."""
        return self.drain.started_at is not None

    @property
    def is_over(self) -> bool:
        """Whether nothing keeps this pod any more."""
        return self.drain.phase(self._clock(), self._running()) == "Over"

    def leave(self, *, final: bool) -> None:
        """Begin the drain; `final`: this program is to end, else it is only announced."""
        if not self.is_leaving:
            self._journal.write("draining", running=self._running())
        self.drain.start(self._clock(), final=final)

    def stay(self) -> bool:
        """Take back a drain that was announced and not followed by a signal in time; whether it was."""
        lapsed = self.drain.lapse(self._clock())
        if lapsed:
            self._tally.drains_taken_back += 1
            self._journal.write("drain_taken_back", after=self.drain.limit_seconds + GRACE)
        return lapsed

    def refusal(self) -> Refusal | None:
        """Why no traffic is taken now; None while it is."""
        if self.drain.started_at is None:
            return None
        phase = self.drain.phase(self._clock(), self._running())
        return refuse(Code.DRAINING) if phase in ("Refusing", "Over") else None

    def unready(self) -> Refusal | None:
        """Why no traffic should be sent here; None while it should."""
        if self.is_leaving:
            return refuse(Code.DRAINING)
        if self.directory is None and self.policy == "Closed":
            return refuse(Code.NOT_CONFIGURED)
        return None if self._settled() else refuse(Code.STARTING)

    def offer_config(self, data: bytes, source: Source) -> None:
        """A config came in."""
        self._take(offer_config(self.documents, data, source, self._pod_uid))

    def offer_identity(self, data: bytes, source: Source) -> None:
        """An identity came in."""
        self._take(offer_identity(self.documents, data, source))

    def offer(self, request: SyncRequest) -> None:
        """What a sync brought."""
        if request.identity:
            self.offer_identity(bytes(request.identity), "Channel")
        if request.config:
            self.offer_config(bytes(request.config), "Channel")

    def say_what_is_missing(self, config: Path | None, identity: Path | None) -> None:
        """Log what this pod waits for: of a config in a file and an identity in a folder; None: none was named."""
        until_then = "" if self.directory else f"; until then failurePolicy {self.policy} decides about every request"
        if self.documents.config is None:
            self._journal.write("waiting", message=waiting_for("config", config) + until_then)
        if self.documents.identity is None:
            file = identity and identity / IDENTITY_KEY
            self._journal.write("waiting", message=waiting_for("identity", file) + until_then)

    def _take(self, documents: Documents) -> None:
        before, self.documents = self.documents, documents
        if documents.rejected != before.rejected and documents.rejected is not None:
            rejected = documents.rejected
            self._tally.configs_rejected[rejected.reason] += 1
            self._journal.write("rejected", reason=rejected.reason, message=rejected.message)
        if documents.unknown_fields and documents.unknown_fields != before.unknown_fields:
            named = ", ".join(documents.unknown_fields)
            self._journal.write("partly_understood", fields=named, message=_NOT_OBEYED)
        if documents.config is not before.config or documents.identity is not before.identity:
            self.directory = documents.directory
            self._keep(documents)
        if documents.config is not None and documents.config is not before.config:
            self._put_in_force(documents.config, documents.source)

    def _put_in_force(self, config: PodConfig, source: Source) -> None:
        self._tally.configs_adopted += 1
        self._adopt(config)
        self._journal.write("configured", generation=config.generation, source=source, digest=config.digest)
