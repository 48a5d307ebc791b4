"""What one reconcile looks at: one pool and all that belongs to it, as it was found.

Decides nothing. The shell fills it in one go; the rules read nothing else.

Invariants:

1. Every value is as stored or as reported: nothing here is derived from another part of it.
2. None and a missing key are "nobody knows", never 0 and never "no".
3. All quotas and pods are of the pool's namespace and name this pool, or match its selector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kvquota_api.meta import ADMIN_PORT
from kvquota_api.model_pool import ModelPool
from kvquota_api.pod_config import PodConfig, PoolIdentity
from kvquota_api.tenant_quota import TenantQuota
from kvquota_api.usage import UsageReport

Kind = Literal["ModelPool", "TenantQuota"]


@dataclass(frozen=True, slots=True, order=True)
class PoolKey:
    namespace: str
    name: str


@dataclass(frozen=True, slots=True, order=True)
class PoolClaim:
    """Another ModelPool of the namespace whose selector matches the same pod; `created` is its RFC 3339 time."""

    created: str
    name: str


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod that the pool's selector matches, whatever its phase; finished pods (Succeeded, Failed) are left out.

    `governed`: it has a container or an init container named "kvquota". `deleting`: it has a deletion timestamp, or no
    object any more while it may still work.
    `config_map`: the name of the ConfigMap that it mounts as its config, None where it mounts none that may be ours.
    `asks`: it carries the label that asks for the sidecar. `plan`: the hash of the plan that its engine was started
    with, "-" where the model was not known then, None where nobody said. `left`: the selector matches it no longer, for
    longer than a deleted pod may work on, and its durable copy is still stored.
    """

    namespace: str
    name: str
    uid: str
    ip: str | None
    ready: bool
    deleting: bool
    governed: bool
    other_pools: tuple[PoolClaim, ...] = ()
    admin_port: int = ADMIN_PORT
    config_map: str | None = None
    asks: bool = False
    plan: str | None = None
    left: bool = False


@dataclass(frozen=True, slots=True)
class QuotaSeen:
    """A quota that parses, and its status as stored ({} where it has none yet)."""

    quota: TenantQuota
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class InvalidSeen:
    """An object that does not parse; `message` names the field, what is wrong with it and what would be accepted.

    `generation` is metadata.generation. The namespace is the pool's.
    """

    kind: Kind
    name: str
    uid: str
    generation: int
    message: str
    status: Mapping[str, Any]


def written(seen: ModelPool | TenantQuota | InvalidSeen) -> object:
    """What people write of an object: all but its status."""
    return replace(seen, status={}) if isinstance(seen, InvalidSeen) else (seen.metadata, seen.spec)


@dataclass(frozen=True, slots=True)
class KeyFound:
    """The text in one entry: of a Secret of type kvquota.dev/api-key, or of a ConfigMap with public keys."""

    value: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeyProblem:
    """Why a key could not be read; `reason` as a condition's, `message` says what to do."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ReportSeen:
    """The last good report of one pod, when it came (monotonic seconds), and the channel's last error since then."""

    report: UsageReport | None = None
    received_at: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SecretSeen:
    """The pool's own Secret; `identity` is None where it holds none that can be read."""

    token: str = field(repr=False)
    pepper: str = field(repr=False)
    identity: PoolIdentity | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Orphans:
    """The quotas that name a pool that is not there, and the names of the pools that are there in its namespace."""

    key: PoolKey
    quotas: tuple[QuotaSeen, ...] = ()
    invalid: tuple[InvalidSeen, ...] = ()
    pools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observed:
    """One pool and its surroundings.

    `pool`: an InvalidSeen where the stored pool does not parse: everything then stays as the pods have it.
    `keys`: by (name of the Secret, key in it). `configs`: the durable copies and `reports`, both by pod uid.
    `jwks`: the set of keys that spec.sidecar.identity.jwt.keysRef names, None where it names none.
    `model_config`: the content of spec.model.config.configMapRef, None where it is not used or not there.
    `attempts`: by pod uid, a durable copy whose writing has not ended yet, or ended without a word of whether it is
    stored. `behind`: by pod uid, since when (on the clock of the reports) no config has been in force there that was
    wanted then or later. `refused`: by pod uid, what the API server says each time it is given the durable copy, and
    `secret_refused` the same of the pool's Secret. `sync_seconds`: the period of the channel, for what counts as stale.
    `max_config_bytes`: the largest config, as JSON, of which a durable copy can be stored, and `max_identity_bytes` the
    same of the pool's identity; None where there is no bound.
    """

    key: PoolKey
    pool: ModelPool | InvalidSeen
    pool_status: Mapping[str, Any]
    quotas: tuple[QuotaSeen, ...] = ()
    invalid: tuple[InvalidSeen, ...] = ()
    keys: Mapping[tuple[str, str], KeyFound | KeyProblem] = field(default_factory=dict)
    pods: tuple[PodSeen, ...] = ()
    configs: Mapping[str, PodConfig] = field(default_factory=dict)
    reports: Mapping[str, ReportSeen] = field(default_factory=dict)
    secret: SecretSeen | None = None
    jwks: KeyFound | KeyProblem | None = None
    model_config: Mapping[str, Any] | None = None
    attempts: Mapping[str, PodConfig] = field(default_factory=dict)
    behind: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    secret_refused: str | None = None
    sync_seconds: float = 3.0
    max_config_bytes: int | None = None
    max_identity_bytes: int | None = None
