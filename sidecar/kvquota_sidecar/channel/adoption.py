"""What becomes of a document that comes in: in force, or refused with a reason.

Decides which config and which identity are in force. Pure.

Invariants:

1. A document comes into force whole or not at all, and the last good one stays until then.
2. A generation never goes backwards. A file that is older than what the channel brought is late, not wrong: it is
   passed over in silence.
3. The last refusal is kept until a document of the same kind is accepted.
4. What is in force and on the disk is reported as from there, however it comes again: it is found after a restart.
5. A config is for one pod: where this one knows its own uid, another's config is refused.
6. Requests are judged once it can be told whose they are, and not before: by config and identity together, or by a
   config whose anonymous tenant is its only one, which everybody is. What came is never taken away again.
7. What a document of a newer version says in fields that this one does not know is not obeyed, and is reported. A file
   is read like what the channel brings: both have the writer's digest, which nobody makes by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from kvquota_api.pod_config import (
    DocumentError,
    PodConfig,
    PoolIdentity,
    decode_config,
    decode_identity,
    unknown_fields,
)
from kvquota_api.usage import InForce, Rejected, Source
from kvquota_sidecar.proxy.identity import Directory

Kind = Literal["config", "identity"]
_LIMIT: Final = 1024  # characters of a message in the report


@dataclass(frozen=True, slots=True)
class Documents:
    """What is in force. `rejected_*`: the last document of that kind that was refused since a good one."""

    config: PodConfig | None = None
    identity: PoolIdentity | None = None
    source: Source = "None"
    rejected_config: Rejected | None = None
    rejected_identity: Rejected | None = None

    @property
    def directory(self) -> Directory | None:
        """Config and identity as requests need them; None while nobody can tell whose a request is."""
        if self.config is None or (self.identity is None and not _is_one_tenants(self.config)):
            return None
        return Directory(self.config, self.identity)

    @property
    def rejected(self) -> Rejected | None:
        """What the report names: a bad config before a bad identity."""
        return self.rejected_config or self.rejected_identity

    @property
    def unknown_fields(self) -> tuple[str, ...]:
        """Fields of what is in force that this version does not know."""
        documents = (self.config, self.identity)
        return tuple(field for each in documents if each is not None for field in unknown_fields(each))

    def in_force(self) -> InForce:
        """As the report says it."""
        return InForce(
            generation=0 if self.config is None else self.config.generation,
            config_digest="" if self.config is None else self.config.digest,
            identity_digest="" if self.identity is None else self.identity.digest,
            source=self.source,
            unknown_fields=self.unknown_fields,
        )


def offer_config(documents: Documents, data: bytes, source: Source, pod_uid: str) -> Documents:
    """What is in force after a config came in from `source`; `pod_uid` is this pod's own, "" where it is not known."""
    try:
        config = decode_config(data)
    except DocumentError as error:
        return replace(documents, rejected_config=_rejected(0, "InvalidConfig", f"{source}: {error}"))
    if pod_uid and config.pod.uid != pod_uid:
        named = f"The config is for pod {config.pod.name} ({config.pod.uid}), this is pod {pod_uid}."
        return replace(documents, rejected_config=_rejected(config.generation, "WrongPod", named))
    return _newer(documents, config, source)


def offer_identity(documents: Documents, data: bytes, source: Source) -> Documents:
    """What is in force after an identity came in from `source`."""
    try:
        identity = decode_identity(data)
    except DocumentError as error:
        return replace(documents, rejected_identity=_rejected(0, "InvalidIdentity", f"{source}: {error}"))
    return replace(documents, identity=identity, rejected_identity=None)


def _is_one_tenants(config: PodConfig) -> bool:
    return [each.id for each in config.tenants] == [config.anonymous_tenant]


def _newer(documents: Documents, config: PodConfig, source: Source) -> Documents:
    current = documents.config
    if current is not None and config.digest != current.digest and config.generation <= current.generation:
        if source == "File":
            return documents
        went_back = f"Generation {config.generation} came after {current.generation}, which stays in force."
        return replace(documents, rejected_config=_rejected(config.generation, "GenerationWentBack", went_back))
    if current is not None and config.digest == current.digest and config.generation < current.generation:
        return replace(documents, rejected_config=None)
    if current is not None and config == current and documents.source == "File":
        return replace(documents, rejected_config=None)
    return replace(documents, config=config, source=source, rejected_config=None)


def _rejected(generation: int, reason: str, message: str) -> Rejected:
    return Rejected(generation=generation, reason=reason, message=message[:_LIMIT])
