"""What vLLM's /metrics say of its KV cache, as a sample.

Decides how the gauges of vLLM's versions become blocks. Pure.

Invariants:

1. What the engine does not say is None.
2. `kv_cache_usage_perc` is of the blocks without the null block, which is never handed out.

It does not know whether `block_size` is that of the cache or only that of the flags (they differ on some models): the
plan's is enforced, this one is reported beside it.

Aliases are in the order new to old: `gpu_cache_usage_perc` was renamed in 0.10.
"""

from __future__ import annotations

from typing import Final

from kvquota_api.amounts import Blocks, Tokens
from kvquota_sidecar.engines.exposition import Exposition, Sample, by_engine, first_of
from kvquota_sidecar.ledger.asking import EngineSample

USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
RUNNING: Final = ("vllm:num_requests_running",)
WAITING: Final = ("vllm:num_requests_waiting",)
CACHE_CONFIG: Final = ("vllm:cache_config_info",)
STARTED_AT: Final = ("process_start_time_seconds",)
_NULL_BLOCKS: Final = 1
_EXPOSITION: Final = Exposition(frozenset((*USAGE, *RUNNING, *WAITING, *CACHE_CONFIG, *STARTED_AT)))


def read_sample(text: str) -> EngineSample | None:
    """The sample of one exposition; None where it holds nothing of vLLM's."""
    found = _EXPOSITION.read(text)
    config = first_of(found, CACHE_CONFIG)
    blocks, block_tokens = _sizes(config)
    usage = by_engine(first_of(found, USAGE))
    if not usage and not config:
        return None
    return EngineSample(
        blocks=blocks,
        block_tokens=block_tokens,
        used_blocks=None if blocks is None or not usage else _used(blocks, max(usage.values())),
        running=_total(first_of(found, RUNNING)),
        waiting=_total(first_of(found, WAITING)),
        started_at=max((each.value for each in first_of(found, STARTED_AT)), default=None),
    )


def _used(blocks: Blocks, share: float) -> Blocks:
    return Blocks(round(share * (blocks - _NULL_BLOCKS)))


def _total(samples: list[Sample]) -> int | None:
    return round(sum(by_engine(samples).values())) if samples else None


def _sizes(config: list[Sample]) -> tuple[Blocks | None, Tokens | None]:
    """Blocks with the null block, and tokens of one."""
    if not config:
        return None, None
    labels = config[0].labels
    blocks, block_tokens = _whole(labels.get("num_gpu_blocks")), _whole(labels.get("block_size"))
    return (None if blocks is None else Blocks(blocks)), (None if block_tokens is None else Tokens(block_tokens))


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
