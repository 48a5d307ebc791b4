"""The channel between the operator and one sidecar: `POST /v1/sync`, config one way and usage the other.

Decides the shape of the request and of the answer. Pure, and free of pydantic: the sidecar writes it.

Invariants:

1. The request always names the digests that should be in force; it carries a document only when that document changed.
2. A document that is refused is named in `rejected`, and the last good one stays in force.
3. None is "nobody measured it", never 0. Counters only grow within one `epoch` and start at 0 in a new one.
4. Whatever is read has a bound: of a list, of a table, of its keys, of every text and of every whole number. What an
   engine says of its size is bounded by what a card can hold, so that the sum over all pods can be counted with.
5. A field that the reader does not know is passed over, one that the writer did not know has a default; a word that the
   reader does not know, or another `version`, refuses the message (docs/adr/0006-versions-side-by-side.md).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

import msgspec

from kvquota_api.pod_config import LONGEST_FIELD, MAX_TENANTS, MAX_UNKNOWN, DocumentError, Name, Natural

SYNC_VERSION: Final = 1
SYNC_PATH: Final = "/v1/sync"
RECENT_SECONDS: Final = 600  # the window of `recent`: ten minutes, as the columns of `kubectl get tq` say
MAX_ACCOUNTS: Final = 2 * MAX_TENANTS  # of one sidecar: its config's, and as many of earlier ones, for their totals
MAX_CODES: Final = 64  # of one table of counts; there are fewer codes and rungs than that
MAX_BLOCKS: Final = 2**40  # of one engine's pool: a block takes a byte at least, and no card has a TiB of memory
MAX_BLOCK_TOKENS: Final = 2**31 - 1  # of one block: the bound of every length in the API
LONGEST_WORD: Final = 64  # characters of a code, a rung or a reason: all of ours are shorter

Source = Literal["None", "File", "Channel"]
EngineState = Literal["Unknown", "Ready", "Down"]
Rung = Literal["Normal", "Shed", "Evict", "Truncate", "Fallback"]
Word = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_WORD)]
DigestInForce = Annotated[str, msgspec.Meta(max_length=64)]  # of SHA-256 in hexadecimal; "" where there is none
EngineBlocks = Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOCKS)]
BlockTokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOCK_TOKENS)]
FieldPath = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_FIELD)]
Sentence = Annotated[str, msgspec.Meta(max_length=1024)]
Table = Annotated[dict[Word, Natural], msgspec.Meta(max_length=MAX_CODES)]


class _Message(msgspec.Struct, frozen=True, rename="camel", kw_only=True, gc=False):
    """Nothing in a message leads back to it, so the collector need not look through those of thousands of pods."""


_ABSENT: Final = msgspec.Raw()  # false; omitted when encoded


class SyncRequest(_Message, frozen=True, kw_only=True, omit_defaults=True):
    """`config` and `identity` are documents of `kvquota_api.pod_config`, read apart: a bad one refuses only itself."""

    version: Literal[1] = SYNC_VERSION
    config_digest: DigestInForce
    identity_digest: DigestInForce
    config: msgspec.Raw = _ABSENT
    identity: msgspec.Raw = _ABSENT


class InForce(_Message, frozen=True, kw_only=True):
    """What a sidecar obeys. `unknown_fields`: of these documents, what it does not know and does not act on."""

    generation: Natural = 0
    config_digest: DigestInForce = ""
    identity_digest: DigestInForce = ""
    source: Source = "None"
    unknown_fields: Annotated[tuple[FieldPath, ...], msgspec.Meta(max_length=2 * MAX_UNKNOWN)] = ()


class Rejected(_Message, frozen=True, kw_only=True):
    """A document that was refused: `reason` is one PascalCase word, `message` a sentence."""

    generation: Natural
    reason: Word
    message: Sentence


class EngineRecent(_Message, frozen=True, kw_only=True):
    """What the engine did by its own counters, in the last ten minutes or since it or the sidecar started.

    `finished`: sequences that it answered to the end; `foreign`: how many of them the sidecar cannot have sent, at
    least. `prompt_tokens`: that it looked up in its prefix cache; `cached_tokens`: that it found there.
    """

    finished: Natural | None = None
    foreign: Natural | None = None
    prompt_tokens: Natural | None = None
    cached_tokens: Natural | None = None


class EngineUsage(_Message, frozen=True, kw_only=True):
    """What the engine says of itself. `blocks` with the null block; all of it `age_seconds` before the report
    (where it was not seen yet: since the sidecar has looked for it).

    `aborts_lost`: it goes on with requests whose connections are closed; None: it does not say what it runs.
    """

    state: EngineState = "Unknown"
    blocks: EngineBlocks | None = None
    block_tokens: BlockTokens | None = None
    used_blocks: Natural | None = None
    running: Natural | None = None
    waiting: Natural | None = None
    age_seconds: float | None = None
    aborts_lost: bool | None = None
    recent: EngineRecent = EngineRecent()


class PoolUsage(_Message, frozen=True, kw_only=True):
    """Blocks of this pod's pool by docs/accounting.md: `usable` is U, `free` is F, `reserved` all charges together.

    `gauge_is_fresh`: False where the engine has not said lately what is in use, so that F is by the ledger alone.
    `waiting`: guaranteed requests that wait for room. `estimate_error_percent`: how far the estimate of a prompt was
    off, at the median of the last ones; None: nothing was learnt yet.
    """

    usable: Natural
    free: Annotated[int, msgspec.Meta(ge=-(2**63 - 1), le=2**63 - 1)]
    reserved: Natural
    used: Natural
    unattributed: Natural
    pressure_percent: float
    rung: Rung = "Normal"
    accounting: Literal["Estimated", "Exact"] = "Estimated"
    gauge_is_fresh: bool = True
    waiting: Natural = 0
    estimate_error_percent: float | None = None


class Refusal(_Message, frozen=True, kw_only=True):
    """The last refusal of a tenant: `code` as the client saw it, `at` in Unix seconds."""

    code: Word
    message: Sentence
    at: float


class Counts(_Message, frozen=True, kw_only=True):
    """`rejected` and `would_reject` by refusal code, `degraded` by rung.

    `evicted`: running requests ended for others. `ended`: those ended since their tenant grew past its own hard.
    `guarantee_missed`: guaranteed requests that found no room, each also in `rejected`, and protected ones that the
    engine itself preempted. `prompt_tokens`: of requests that are over and of which the engine said how many tokens it
    found in its prefix cache; `cached_tokens`: that it found.
    """

    admitted: Natural = 0
    rejected: Table = {}
    would_reject: Table = {}
    evicted: Natural = 0
    ended: Natural = 0
    guarantee_missed: Natural = 0
    degraded: Table = {}
    prompt_tokens: Natural = 0
    cached_tokens: Natural = 0


class TenantUsage(_Message, frozen=True, kw_only=True):
    """One tenant on this pod. `reserved` is C(t) in blocks; `total` since `started_at`, `recent` of ten minutes."""

    id: Name
    reserved: Natural
    used: Natural
    over_soft: Natural
    in_flight: Natural
    total: Counts
    recent: Counts
    last_refusal: Refusal | None = None


class UsageReport(_Message, frozen=True, kw_only=True):
    """One sidecar's answer to a sync. `epoch` is new in every process; `sequence` grows by one with every report."""

    version: Literal[1] = SYNC_VERSION
    epoch: Name
    sequence: Natural
    started_at: float
    in_force: InForce
    rejected: Rejected | None = None
    engine: EngineUsage
    pool: PoolUsage | None = None
    tenants: Annotated[tuple[TenantUsage, ...], msgspec.Meta(max_length=MAX_ACCOUNTS)] = ()


_M = TypeVar("_M", SyncRequest, UsageReport)


def encode(message: SyncRequest | UsageReport) -> bytes:
    """JSON."""
    return msgspec.json.encode(message)


def decode_request(data: bytes) -> SyncRequest:
    """Read a sync request. Raises DocumentError that names the field."""
    return _decode(data, SyncRequest)


def decode_report(data: bytes) -> UsageReport:
    """Read a usage report. Raises DocumentError that names the field."""
    return _decode(data, UsageReport)


def _decode(data: bytes, kind: type[_M]) -> _M:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DocumentError(f"not a valid {kind.__name__}: {error}") from error
