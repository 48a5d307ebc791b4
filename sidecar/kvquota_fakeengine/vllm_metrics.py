"""What the engine says of itself under vLLM 0.32's names and labels."""

from collections.abc import Callable, Sequence

from kvquota_fakeengine.exposition import Family, Labels
from kvquota_fakeengine.scheduling import Scheduler, Totals
from kvquota_fakeengine.settings import EngineSettings

_PREFIX = "vllm:"


def vllm_families(
    schedulers: Sequence[Scheduler], settings: EngineSettings, announced_blocks: int | None
) -> list[Family]:
    """What the schedulers stand at, one for each rank. Cached blocks are free ones; the null block is left out of the
    usage."""
    ranks = [({"engine": str(rank), "model_name": settings.model}, each) for rank, each in enumerate(schedulers)]
    return [*_gauges(ranks), *_counters(ranks), _cache_config(settings, announced_blocks)]


_Ranks = Sequence[tuple[dict[str, str], Scheduler]]


def _gauges(ranks: _Ranks) -> list[Family]:
    def gauge(name: str, told: str, value: Callable[[Scheduler], float]) -> Family:
        return Family(_PREFIX + name, "gauge", told, [(labels, value(each)) for labels, each in ranks])

    reasons: list[tuple[Labels, float]] = []
    for labels, each in ranks:
        reasons += [(labels | {"reason": "capacity"}, len(each.waiting)), (labels | {"reason": "deferred"}, 0.0)]
    return [
        gauge("num_requests_running", "Number of requests in model execution batches.", lambda s: len(s.running)),
        gauge("num_requests_waiting", "Number of requests waiting to be processed.", lambda s: len(s.waiting)),
        Family(f"{_PREFIX}num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.", reasons),
        gauge(
            "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", lambda s: s.pool.held / s.pool.usable
        ),
    ]


def _counters(ranks: _Ranks) -> list[Family]:
    def counter(name: str, told: str, value: Callable[[Totals], float]) -> Family:
        samples = [(labels, value(each.totals)) for labels, each in ranks]
        return Family(f"{_PREFIX}{name}_total", "counter", told, samples)

    finished = [
        (labels | {"finished_reason": str(why)}, count)
        for labels, each in ranks
        for why, count in each.totals.finished.items()
    ]
    return [
        counter("prefix_cache_queries", "Prefix cache queries, in queried tokens.", lambda t: t.prefix_queries),
        counter("prefix_cache_hits", "Prefix cache hits, in cached tokens.", lambda t: t.prefix_hits),
        counter("num_preemptions", "Cumulative number of preemption from the engine.", lambda t: t.preemptions),
        counter("prompt_tokens", "Number of prefill tokens processed.", lambda t: t.prompt_tokens),
        counter("prompt_tokens_cached", "Number of cached prompt tokens.", lambda t: t.cached_prompt_tokens),
        counter("generation_tokens", "Number of generation tokens processed.", lambda t: t.generation_tokens),
        Family(f"{_PREFIX}request_success_total", "counter", "Count of successfully processed requests.", finished),
    ]


def _cache_config(settings: EngineSettings, announced_blocks: int | None) -> Family:
    """One line for each rank; each has the blocks of all ranks together and the tokens of one, as in vLLM."""
    blocks = settings.blocks if announced_blocks is None else announced_blocks
    size_tokens = blocks * settings.block_tokens
    labels = {
        "block_size": str(settings.block_tokens),
        "cache_dtype": "auto",
        "effective_attention_block_size": str(settings.block_tokens),
        "enable_prefix_caching": "True",
        "engine": "0",
        "gpu_memory_utilization": "0.92",
        "kv_cache_max_concurrency": repr(size_tokens / settings.max_model_len),
        "kv_cache_memory_bytes": str(settings.blocks * settings.block_tokens * settings.kv_bytes_per_token),
        "kv_cache_size_tokens": str(size_tokens),
        "num_cpu_blocks": "None",
        "num_gpu_blocks": str(blocks * settings.ranks),
        "num_gpu_blocks_override": "None",
        "prefix_caching_hash_algo": "sha256",
        "sliding_window": "None",
    }
    samples = [(labels | {"engine": str(rank)}, 1) for rank in range(settings.ranks)]
    return Family(f"{_PREFIX}cache_config_info", "gauge", "Information of the LLMEngine CacheConfig", samples)
