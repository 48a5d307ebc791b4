"""What vLLM's /metrics say of its KV cache.

Decides how the gauges of vLLM 0.8 to 0.32 become blocks. Pure.

Invariants:

1. What the engine does not say is None.
2. The usage is a share of the blocks without the null block, which is never handed out.
3. `num_gpu_blocks` is the sum over all ranks behind the port, though every rank has a line with it: one rank has its
   part of it. It is of one rank where lines differ, or where it makes up `kv_cache_size_tokens`, which is of one rank.

Several API servers leave out of their exposition what none of them has set yet: before the first request it is not
known what runs and what is in use.

It does not know whether `block_size` is that of the cache: for models with several kinds of layers it is the smallest
of them, or what the flags said. The plan's is enforced, this one is reported beside it.

Sources: vllm/v1/metrics/loggers.py and vllm/v1/engine/core_client.py of 0.32; aliases are in the order new to old.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvquota_api.amounts import Blocks, Tokens
from kvquota_sidecar.engines.exposition import (
    Found,
    Sample,
    added,
    by_label,
    counted,
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

USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # renamed in 0.10
RUNNING: Final = ("vllm:num_requests_running",)
WAITING: Final = ("vllm:num_requests_waiting",)
PREEMPTIONS: Final = ("vllm:num_preemptions_total",)
CACHE_CONFIG: Final = ("vllm:cache_config_info",)
FINISHED: Final = ("vllm:request_success_total",)  # by reason, one for each sequence; not those that were aborted
LOOKED_UP: Final = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")  # renamed in 0.10
FOUND: Final = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
WORK: Final = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
STARTED_AT: Final = ("process_start_time_seconds",)  # missing with --api-server-count > 1
_RANK: Final = "engine"  # the label with the number of the data-parallel rank; since 0.9
_NULL_BLOCKS: Final = 1
_NAMES: Final = (*USAGE, *RUNNING, *WAITING, *CACHE_CONFIG)


def read_vllm(text: str) -> Reading | None:
    """What one exposition says; None where it holds nothing of vLLM's."""
    found = read(text, (*_NAMES, *PREEMPTIONS, *FINISHED, *LOOKED_UP, *FOUND, *WORK, *STARTED_AT))
    if found.keys().isdisjoint(_NAMES):
        return None
    return Reading(_sample(found), _marks(found))


def _sample(found: Found) -> EngineSample:
    usage, running, waiting = (by_label(first_of(found, each), _RANK) for each in (USAGE, RUNNING, WAITING))
    names = ranks_in(usage, running, waiting)
    config = first_of(found, CACHE_CONFIG)
    blocks = _blocks(config, len(names) or 1)
    used = {name: _used(blocks, share) for name, share in usage.items()}
    return EngineSample(
        blocks=blocks,
        block_tokens=_block_tokens(config),
        used_blocks=added(used.get(name) for name in (names or used)),
        running=total(running),
        waiting=total(waiting),
        preemptions=total(by_label(first_of(found, PREEMPTIONS), _RANK)),
        finished=counted(first_of(found, FINISHED)),
        prompt_tokens=counted(first_of(found, LOOKED_UP)),
        cached_tokens=counted(first_of(found, FOUND)),
        ranks=tuple(
            RankSample(int(name), used.get(name), rank_of(running, name), rank_of(waiting, name)) for name in names
        ),
    )


def _marks(found: Found) -> Marks:
    return Marks(starts=frozenset(sample.value for sample in first_of(found, STARTED_AT)), work=sum_of(found, WORK))


def _used(blocks: Blocks | None, share: float) -> Blocks | None:
    return None if blocks is None or share > 1 else Blocks(round(share * max(0, blocks - _NULL_BLOCKS)))


def _blocks(config: list[Sample], ranks: int) -> Blocks | None:
    """Of one rank, with its null block."""
    announced = {_whole(each.labels, "num_gpu_blocks") for each in config} - {None, 0}
    smallest = min((each for each in announced if each is not None), default=None)
    if smallest is None:
        return None
    of_one_rank = len(announced) > 1 or _is_of_one_rank(config[0].labels, smallest)
    return of_a_card(smallest if of_one_rank else smallest // ranks)


def _is_of_one_rank(labels: Mapping[str, str], blocks: int) -> bool:
    block_tokens, tokens = _whole(labels, "block_size"), _whole(labels, "kv_cache_size_tokens")
    return block_tokens is not None and tokens is not None and blocks * block_tokens == tokens


def _block_tokens(config: list[Sample]) -> Tokens | None:
    known = (of_a_block(_whole(each.labels, "block_size")) for each in config)
    return next((each for each in known if each is not None), None)


def _whole(labels: Mapping[str, str], name: str) -> int | None:
    text = labels.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 16 else None
