"""What the engine says of itself under SGLang 0.5's names and labels: a page is a block, and there is no null block."""

from collections.abc import Callable, Sequence
from typing import Any

from kvquota_fakeengine.exposition import Family
from kvquota_fakeengine.scheduling import Scheduler
from kvquota_fakeengine.settings import EngineSettings

_PREFIX = "sglang:"


def sglang_families(schedulers: Sequence[Scheduler], settings: EngineSettings) -> list[Family]:
    """What the schedulers stand at, one for each rank. Cached tokens are free ones."""
    page = settings.block_tokens
    ranks = [(_rank_labels(settings, rank), each) for rank, each in enumerate(schedulers)]

    def gauge(name: str, told: str, value: Callable[[Scheduler], float]) -> Family:
        return Family(_PREFIX + name, "gauge", told, [(labels, value(each)) for labels, each in ranks])

    return [
        gauge("num_running_reqs", "The number of running requests.", lambda s: len(s.running)),
        gauge("num_queue_reqs", "The number of requests in the waiting queue.", lambda s: len(s.waiting)),
        gauge("token_usage", "The token usage.", lambda s: s.pool.held / s.pool.usable),
        gauge("num_used_tokens", "The number of used tokens.", lambda s: s.pool.held * page),
        gauge("max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", _tokens(page)),
        gauge("page_size", "KV cache page size in tokens.", lambda _: page),
        gauge("num_pages", "Number of KV cache pages.", lambda s: s.pool.usable),
        *_counters(schedulers, settings),
    ]


def server_info(settings: EngineSettings) -> dict[str, Any]:
    """The answer to GET /get_server_info, as far as the cache is concerned."""
    tokens = (settings.blocks - 1) * settings.block_tokens
    told = {"served_model_name": settings.model, "page_size": settings.block_tokens, "dp_size": settings.ranks}
    return told | {"max_total_num_tokens": tokens, "context_length": settings.max_model_len}


def _counters(schedulers: Sequence[Scheduler], settings: EngineSettings) -> list[Family]:
    labels = {"model_name": settings.model}
    prompts = sum(each.totals.prompt_tokens for each in schedulers)
    output = sum(each.totals.generation_tokens for each in schedulers)
    return [
        Family(f"{_PREFIX}prompt_tokens_total", "counter", "Number of prefill tokens processed.", [(labels, prompts)]),
        Family(f"{_PREFIX}generation_tokens_total", "counter", "Number of generation tokens.", [(labels, output)]),
    ]


def _tokens(page: int) -> Callable[[Scheduler], float]:
    return lambda scheduler: scheduler.pool.usable * page


def _rank_labels(settings: EngineSettings, rank: int) -> dict[str, str]:
    labels = {"engine_type": "unified", "model_name": settings.model, "moe_ep_rank": "0", "pp_rank": "0"}
    return labels | {"tp_rank": str(rank)} | ({"dp_rank": str(rank)} if settings.ranks > 1 else {})
