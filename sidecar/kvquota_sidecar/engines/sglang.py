"""What SGLang's /metrics say of its KV cache.

Decides how its gauges become blocks; a block is a page. Pure.

Invariants:

1. What the engine does not say is None.
2. There is no null block: all pages of the pool can be handed out.
3. A rank is as full as its fullest pool: of a model with state layers that may be the pool of states.
4. Tensor- and pipeline-parallel ranks show the same pool and count once; requests of each priority are in the total.

It does not know how old the gauges are: SGLang sets them every 40 steps, and every 30 s while it is idle.

Sources: python/sglang/srt/observability/metrics_collector.py, before 0.5.9 srt/metrics/collector.py. Versions before
0.5.10 do not say their page's size here; all of them do in the answer of GET /get_server_info.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from kvquota_api.amounts import Blocks
from kvquota_sidecar.engines.exposition import (
    LARGEST,
    Found,
    Sample,
    added,
    by_label,
    first_of,
    of_a_block,
    of_a_card,
    rank_of,
    ranks_in,
    read,
    sum_of,
    total,
)
from kvquota_sidecar.engines.reading import Marks, Reading
from kvquota_sidecar.ledger.asking import EngineSample, RankSample

USED: Final = ("sglang:num_used_tokens",)
SHARE: Final = ("sglang:token_usage",)  # rounded to two digits before 0.5: only where the tokens are missing
STATES_SHARE: Final = ("sglang:mamba_usage",)
POOL: Final = ("sglang:max_total_num_tokens",)
PAGE: Final = ("sglang:page_size",)
RUNNING: Final = ("sglang:num_running_reqs",)
WAITING: Final = ("sglang:num_queue_reqs",)
PREEMPTIONS: Final = ("sglang:num_retracted_requests_total",)
WORK: Final = ("sglang:prompt_tokens_total", "sglang:generation_tokens_total")
STARTUP: Final = ("sglang:engine_startup_time", "sglang:engine_load_weights_time")  # seconds it took; 0: not told
STARTED_AT: Final = ("process_start_time_seconds",)
INFO_PATH: Final = "/get_server_info"
_RANK: Final = "dp_rank"
_PRIORITY: Final = "priority"  # empty: of all priorities together
_NAMES: Final = (*USED, *SHARE, *STATES_SHARE, *POOL, *PAGE, *RUNNING, *WAITING)


_Count = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]


class SglangInfo(msgspec.Struct, frozen=True):
    """What matters of GET /get_server_info: tokens of a page, and of the pool of one rank."""

    page_size: _Count | None = None
    max_total_num_tokens: _Count | None = None


def read_info(body: bytes) -> SglangInfo:
    """What an answer to GET /get_server_info says; nothing where it is none."""
    try:
        return msgspec.json.decode(body, type=SglangInfo)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return SglangInfo()


def read_sglang(text: str, info: SglangInfo) -> Reading | None:
    """What one exposition says, with `info` for what it leaves out; None where it holds nothing of SGLang's."""
    found = read(text, (*_NAMES, *PREEMPTIONS, *WORK, *STARTUP, *STARTED_AT))
    if found.keys().isdisjoint(_NAMES):
        return None
    return Reading(_sample(found, info), _marks(found))


def _sample(found: Found, info: SglangInfo) -> EngineSample:
    running, waiting = _of_all(found, RUNNING), _of_all(found, WAITING)
    pool = _smallest(found, POOL) or info.max_total_num_tokens
    page = of_a_block(_smallest(found, PAGE) or info.page_size)
    blocks = of_a_card(pool // page) if pool and page else None
    used = _used(found, page, blocks)
    names = ranks_in(used, running, waiting)
    return EngineSample(
        blocks=blocks,
        block_tokens=page,
        used_blocks=added(_blocks(used, name) for name in (names or used)),
        running=total(running),
        waiting=total(waiting),
        preemptions=total(_of_all(found, PREEMPTIONS)),
        ranks=tuple(
            RankSample(int(name), _blocks(used, name), rank_of(running, name), rank_of(waiting, name)) for name in names
        ),
    )


def _used(found: Found, page: int | None, blocks: Blocks | None) -> dict[str, float]:
    """Blocks in use by rank, by the fullest of its pools."""
    tokens = {} if not page else {rank: -(-count // page) for rank, count in _of_all(found, USED).items()}
    shares = _of_all(found, STATES_SHARE) if tokens else _of_all(found, SHARE)
    by_share = {} if blocks is None else {rank: share * blocks for rank, share in shares.items() if share <= 1}
    return {rank: max(tokens.get(rank, 0.0), by_share.get(rank, 0.0)) for rank in {**tokens, **by_share}}


def _blocks(used: dict[str, float], rank: str) -> Blocks | None:
    return Blocks(round(used[rank])) if rank in used else None


def _of_all(found: Found, aliases: tuple[str, ...]) -> dict[str, float]:
    """By rank, over all priorities."""
    return by_label([each for each in first_of(found, aliases) if not each.labels.get(_PRIORITY)], _RANK)


def _smallest(found: Found, aliases: tuple[str, ...]) -> int | None:
    return min((int(each.value) for each in first_of(found, aliases) if each.value >= 1), default=None)


def _marks(found: Found) -> Marks:
    return Marks(
        starts=frozenset(sample.value for sample in first_of(found, STARTED_AT)),
        constants=tuple(_told(sample) for name in STARTUP for sample in found.get(name, ()) if sample.value),
        work=sum_of(found, WORK),
    )


def _told(sample: Sample) -> tuple[str, float]:
    return sample.labels.get(_RANK, ""), sample.value
