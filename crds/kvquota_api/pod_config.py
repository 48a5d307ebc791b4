"""The two documents that go from the operator to one sidecar: its config and who its clients are.

Decides their shape, their version and their digest. Pure, and free of pydantic: the sidecar reads it.

Invariants:

1. A document is accepted whole or refused whole.
2. Its digest is of what was written, whoever reads it: a reader that knows fewer fields or more finds the same one.
3. A field that this version does not know is passed over, and named. A value that it does not know of a field that it
   knows, or another `version`, refuses the document (docs/adr/0006-versions-side-by-side.md).
4. Two configs with the same digest mean the same; `generation` only says which is newer, and never goes backwards.
5. The config holds nothing secret; the identity holds digests of API keys, never the keys.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from kvquota_api.amounts import Tokens
from kvquota_api.jwks import MAX_JWKS_CHARACTERS
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.memory.worth import Worth

CONFIG_VERSION: Final = 1
MAX_GROUPS: Final = 512  # of one model: a drafter can leave every layer in a group of its own
MAX_TENANTS: Final = 10_000  # of one pool: bounds the config and every table that the sidecar keeps
MAX_UNKNOWN: Final = 16  # names of fields that are told: a release adds a few, and one of them is enough to look
LONGEST_FIELD: Final = 160  # characters of such a name: ours are shorter, and what is strange is cut
FOR_THE_OPERATOR: Final = ("config.plan", "config.earlier")  # its own notes in a config: no sidecar has to know them
MEASURED: Final = "-"  # in place of a plan's hash: the plan is what the engines report, since nobody knows the model

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
Digest = Annotated[str, msgspec.Meta(min_length=64, max_length=64)]
Enforcement = Literal["Enforce", "Shadow"]
FailurePolicy = Literal["Closed", "Open"]


class DocumentError(ValueError):
    """A document that is refused; the text says which field and what is wrong with it."""


class _Document(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A field that comes after the first release has `msgspec.UNSET` as its default, so that it is written only where
    it says something: what does not use it stays as it was, and no older reader meets it."""


class PodRef(_Document, frozen=True, kw_only=True):
    namespace: Name
    name: Name
    uid: Name


class PoolRef(_Document, frozen=True, kw_only=True):
    namespace: Name
    name: Name


class KvPlan(_Document, frozen=True, kw_only=True, cache_hash=True):
    """The planned KV pool of one engine.

    `cap_blocks`: the hard cap of one rank, null block included. `null_blocks`: blocks of it that the engine never hands
    out. `block_tokens`: tokens of one block; `bytes_per_block`: of one GPU; `max_model_len`: tokens of the longest
    request. `ranks`: data-parallel copies of the model in the pod, each with a pool of its own. `batch_tokens`: tokens
    of one step of the engine, None where nobody said. `shares_prefixes`: whether requests with the same beginning hold
    its blocks together.
    """

    cap_blocks: Positive
    null_blocks: Natural
    block_tokens: Positive
    bytes_per_block: Positive
    max_model_len: Positive
    groups: Annotated[tuple[LayerGroup, ...], msgspec.Meta(min_length=1, max_length=MAX_GROUPS)]
    ranks: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    batch_tokens: Positive | None = None
    shares_prefixes: bool = False

    @property
    def worth(self) -> Worth:
        """What blocks are worth in tokens."""
        return Worth(self.groups, Tokens(self.max_model_len))


class MediaCost(_Document, frozen=True, kw_only=True):
    """Tokens that one item of each kind takes at most in a prompt; None: requests with such items are refused."""

    image_tokens: Positive | None = None
    audio_tokens: Positive | None = None
    video_tokens: Positive | None = None


class TenantShare(_Document, frozen=True, kw_only=True):
    """What one tenant may hold on this pod. Soft and hard in blocks; None means without limit.

    `id` is "namespace/tenant"; `quota` is the name of the TenantQuota that says so, for messages. `whole_hard_blocks`,
    `whole_concurrent_requests`: of all pods together, where this is one pod's part of that; None where each pod has a
    limit of its own.
    """

    id: Name
    quota: Name
    priority: Annotated[int, msgspec.Meta(ge=0, le=1000)]
    soft_blocks: Natural
    hard_blocks: Natural
    max_concurrent_requests: Positive | None = None
    max_context_tokens: Positive | None = None
    enforcement: Enforcement = "Enforce"
    whole_hard_blocks: Natural | None = None
    whole_concurrent_requests: Positive | None = None


class EarlierShare(_Document, frozen=True, kw_only=True):
    """The most of one tenant's hard and sequences that a pod may still enforce by a config before this one.

    It holds until the pod reports that this config is in force and is what it would find after a restart. None: without
    limit.
    """

    id: Name
    hard_blocks: Natural
    max_concurrent_requests: Natural | None = None


class Threshold(_Document, frozen=True, kw_only=True):
    """A rung's entry and exit, in percent of the pool's pressure."""

    enter_percent: Percent
    exit_percent: Percent


class Ladder(_Document, frozen=True, kw_only=True):
    guarantee_reserve_percent: Percent = 20
    eviction_wait_seconds: Annotated[float, msgspec.Meta(ge=0, le=60)] = 2.0
    min_dwell_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 10.0
    shed: Threshold = Threshold(enter_percent=85, exit_percent=80)
    evict: Threshold = Threshold(enter_percent=92, exit_percent=86)


class PodConfig(_Document, frozen=True, kw_only=True):
    """All that one sidecar enforces. `digest` is `content_digest` of it.

    `plan` and `earlier` are for the operator, a sidecar reads past them: the hash of the plan that `model`,
    `engine_type` and `kv` are of, MEASURED where nobody planned it; and what was taken back.
    """

    version: Literal[1] = CONFIG_VERSION
    generation: Positive
    digest: str
    pod: PodRef
    pool: PoolRef
    model: Name
    engine_type: Literal["vLLM", "SGLang", "LlamaCpp", "TensorRTLLM", "OpenAI"]
    kv: KvPlan
    ladder: Ladder
    tenants: Annotated[tuple[TenantShare, ...], msgspec.Meta(max_length=MAX_TENANTS)]
    anonymous_tenant: str = ""
    api_key_header: Name = "Authorization"
    authorization: Literal["Forward", "Remove"] = "Forward"
    enforcement: Enforcement = "Enforce"
    cache_isolation: Literal["Tenant", "Shared"] = "Tenant"
    media: MediaCost = MediaCost()
    plan: Annotated[str, msgspec.Meta(max_length=64)] = ""
    earlier: Annotated[tuple[EarlierShare, ...], msgspec.Meta(max_length=MAX_TENANTS)] = ()


class JwtIssuer(_Document, frozen=True, kw_only=True):
    """Whose JSON Web Tokens are believed. `keys`: a JSON Web Key Set of public keys, as text. `tenant_claim` names the
    tenant, within `namespace`."""

    issuer: Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]
    audience: Name
    tenant_claim: Name
    namespace: Name
    keys: Annotated[str, msgspec.Meta(max_length=MAX_JWKS_CHARACTERS)]


class TrustedPeer(_Document, frozen=True, kw_only=True):
    """A peer that names the tenant in the header `name` and proves itself by a secret. `secret`: hex HMAC-SHA256 of it
    under the identity's pepper. `tenants`: value of the header -> tenant id."""

    name: Name
    secret: Digest
    tenants: dict[Name, Name]


class PoolIdentity(_Document, frozen=True, kw_only=True):
    """Who the clients of one pool are. `api_keys`: hex HMAC-SHA256 of a key under `pepper` -> tenant id."""

    version: Literal[1] = CONFIG_VERSION
    digest: str
    pepper: Annotated[str, msgspec.Meta(min_length=32, max_length=128)]
    api_keys: dict[Digest, Name]
    jwt: JwtIssuer | None = None
    trusted_peer: TrustedPeer | None = None

    def __repr__(self) -> str:
        """Without the pepper, which is a secret."""
        return f"PoolIdentity(digest={self.digest!r})"


class ConfigOfAnotherVersion(PodConfig, frozen=True, kw_only=True):
    """What this version knows of a config that it would write otherwise. Equal to none that it writes itself.

    `unknown`: the fields that it does not know and nobody acts on, as in `config.tenants[].weight`; `as_written`: JSON.
    """

    unknown: tuple[str, ...]
    as_written: bytes


class IdentityOfAnotherVersion(PoolIdentity, frozen=True, kw_only=True):
    """The same of an identity."""

    unknown: tuple[str, ...]
    as_written: bytes

    def __repr__(self) -> str:
        """As that of an identity: what was written has the pepper."""
        return PoolIdentity.__repr__(self)


_FOREIGN: Final = (ConfigOfAnotherVersion, IdentityOfAnotherVersion)
_NOT_COUNTED: Final = ("generation", "digest")  # in the digest

_D = TypeVar("_D", bound=PodConfig | PoolIdentity)


def content_digest(document: PodConfig | PoolIdentity) -> str:
    """Hex SHA-256 over the canonical JSON of all but `generation` and `digest`, as its reader will see it.

    Raises DocumentError where the reader would refuse it.
    """
    return _digest(msgspec.to_builtins(_as_read(document)))


def _digest(content: Mapping[str, Any]) -> str:
    counted = {name: value for name, value in content.items() if name not in _NOT_COUNTED}
    return hashlib.sha256(msgspec.json.encode(counted, order="deterministic")).hexdigest()


def _as_read(document: _D) -> _D:
    """A document made in Python is not checked by msgspec, and may hold 2 where its reader will see 2.0."""
    try:
        return msgspec.convert(msgspec.to_builtins(document), type(document))
    except msgspec.ValidationError as error:
        raise DocumentError(f"not a valid {type(document).__name__}: {error}") from error


def sealed(document: _D) -> _D:
    """The same document with its digest filled in. Raises DocumentError where its reader would refuse it."""
    return msgspec.structs.replace(document, digest=content_digest(document))


def encode(document: PodConfig | PoolIdentity) -> bytes:
    """Deterministic JSON; of one that another version wrote, what that wrote."""
    if isinstance(document, _FOREIGN):
        return document.as_written
    return msgspec.json.encode(document, order="deterministic")


def known_part(config: PodConfig) -> PodConfig:
    """`config` without what this version does not know; its digest is not of this any more."""
    if not isinstance(config, ConfigOfAnotherVersion):
        return config
    return PodConfig(**{name: getattr(config, name) for name in PodConfig.__struct_fields__})


def unknown_fields(document: PodConfig | PoolIdentity) -> tuple[str, ...]:
    """Paths of the fields that this version does not know, the first MAX_UNKNOWN in order."""
    return document.unknown if isinstance(document, _FOREIGN) else ()


def decode_config(data: bytes | str) -> PodConfig:
    """Read a config. Raises DocumentError that names the field, also where parts contradict each other."""
    config = _decode(data, PodConfig, ConfigOfAnotherVersion, "config")
    tenants = Counter(tenant.id for tenant in config.tenants)
    repeated = sorted(each for each, count in tenants.items() if count > 1)
    if repeated:
        raise DocumentError(f"tenants: {', '.join(repeated)} named twice")
    if config.kv.null_blocks >= config.kv.cap_blocks:
        raise DocumentError(f"kv.capBlocks: {config.kv.cap_blocks} leaves no block to hand out")
    if config.anonymous_tenant and config.anonymous_tenant not in tenants:
        raise DocumentError(f"anonymousTenant: {config.anonymous_tenant} is none of the tenants")
    for name, rung in (("shed", config.ladder.shed), ("evict", config.ladder.evict)):
        if rung.exit_percent >= rung.enter_percent:
            raise DocumentError(f"ladder.{name}.exitPercent: {rung.exit_percent} is not below enterPercent")
    return config


def decode_identity(data: bytes | str) -> PoolIdentity:
    """Read an identity. Raises DocumentError that names the field."""
    return _decode(data, PoolIdentity, IdentityOfAnotherVersion, "identity")


def _decode(data: bytes | str, kind: type[_D], foreign: Callable[..., _D], name: str) -> _D:
    """`kind` where this version would write the same, else `foreign`. A reader may see 2.0 where 2 was written."""
    try:
        document = msgspec.json.decode(data, type=kind)
        written, known = msgspec.json.decode(data), msgspec.json.decode(msgspec.json.encode(document))
        digest = _digest(known if written == known else written)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DocumentError(f"not a valid {kind.__name__}: {error}") from error
    if digest != document.digest:
        raise DocumentError("digest: does not match the content; the document was cut or edited")
    if written == known:
        return document
    fields = {field: getattr(document, field) for field in kind.__struct_fields__}
    unknown = tuple(sorted({path[:LONGEST_FIELD] for path in _beyond(written, known, name)})[:MAX_UNKNOWN])
    return foreign(**fields, unknown=unknown, as_written=data.encode() if isinstance(data, str) else data)


def _beyond(written: Any, known: Any, path: str) -> Iterator[str]:
    """Paths of what is written and not known; the items of a list have one path."""
    if isinstance(written, list):
        for item, read in zip(written, known, strict=True):
            yield from _beyond(item, read, f"{path}[]")
    if isinstance(written, dict):
        for name, value in written.items():
            if name in known:
                yield from _beyond(value, known[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"


def key_digest(pepper: str, key: str) -> str:
    """Hex HMAC-SHA256 of an API key under the install's pepper: how a key is looked up without being stored."""
    return hmac.new(pepper.encode(), key.encode(), hashlib.sha256).hexdigest()
