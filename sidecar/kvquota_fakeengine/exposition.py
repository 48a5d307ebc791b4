"""The engine's metrics in the text format of Prometheus, under vLLM 0.32's names and labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvquota_fakeengine.scheduling import Scheduler
from kvquota_fakeengine.settings import EngineSettings

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

_PREFIX = "vllm:"
_RENAMED_PREFIX = "engine_core_"

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its kind (`gauge` or `counter`), and a value for each set of labels."""

    name: str
    kind: str
    help: str
    samples: Sequence[tuple[Labels, float]]

    def text(self) -> str:
        lines = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} {self.kind}"]
        lines += [f"{self.name}{_labels(labels)} {float(value)!r}" for labels, value in self.samples]
        return "\n".join(lines) + "\n"


def process_families(started_at: float) -> list[Family]:
    """What any Python process exposes; `started_at` is UTC seconds."""
    told = "Start time of the process since unix epoch in seconds."
    return [Family("process_start_time_seconds", "gauge", told, [({}, started_at)])]


def engine_families(scheduler: Scheduler, settings: EngineSettings, announced_blocks: int | None) -> list[Family]:
    """What the scheduler stands at. Cached blocks are free ones; the null block is left out of the usage."""
    labels = {"engine": "0", "model_name": settings.model}
    return _gauges(scheduler, labels) + _counters(scheduler, labels) + [_cache_config(settings, announced_blocks)]


def renamed(families: Sequence[Family]) -> list[Family]:
    """The same numbers under names that no table of known names has."""
    return [Family(_RENAMED_PREFIX + f.name.removeprefix(_PREFIX), f.kind, f.help, f.samples) for f in families]


def exposition(families: Sequence[Family]) -> str:
    return "".join(family.text() for family in families)


def _gauges(scheduler: Scheduler, labels: Labels) -> list[Family]:
    pool = scheduler.pool
    running, waiting = len(scheduler.running), len(scheduler.waiting)
    reasons = [(dict(labels, reason="capacity"), waiting), (dict(labels, reason="deferred"), 0.0)]
    return [
        _gauge("num_requests_running", "Number of requests in model execution batches.", labels, running),
        _gauge("num_requests_waiting", "Number of requests waiting to be processed.", labels, waiting),
        Family(f"{_PREFIX}num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.", reasons),
        _gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", labels, pool.held / pool.usable),
    ]


def _counters(scheduler: Scheduler, labels: Labels) -> list[Family]:
    totals = scheduler.totals
    finished = [(dict(labels, finished_reason=str(why)), count) for why, count in totals.finished.items()]
    return [
        _counter("prefix_cache_queries", "Prefix cache queries, in queried tokens.", labels, totals.prefix_queries),
        _counter("prefix_cache_hits", "Prefix cache hits, in cached tokens.", labels, totals.prefix_hits),
        _counter("num_preemptions", "Cumulative number of preemption from the engine.", labels, totals.preemptions),
        _counter("prompt_tokens", "Number of prefill tokens processed.", labels, totals.prompt_tokens),
        _counter("prompt_tokens_cached", "Number of cached prompt tokens.", labels, totals.cached_prompt_tokens),
        _counter("generation_tokens", "Number of generation tokens processed.", labels, totals.generation_tokens),
        Family(f"{_PREFIX}request_success_total", "counter", "Count of successfully processed requests.", finished),
    ]


def _cache_config(settings: EngineSettings, announced_blocks: int | None) -> Family:
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
        "num_gpu_blocks": str(blocks),
        "num_gpu_blocks_override": "None",
        "prefix_caching_hash_algo": "sha256",
        "sliding_window": "None",
    }
    return Family(f"{_PREFIX}cache_config_info", "gauge", "Information of the LLMEngine CacheConfig", [(labels, 1)])


def _gauge(name: str, told: str, labels: Labels, value: float) -> Family:
    return Family(_PREFIX + name, "gauge", told, [(labels, value)])


def _counter(name: str, told: str, labels: Labels, value: float) -> Family:
    return Family(f"{_PREFIX}{name}_total", "counter", told, [(labels, value)])


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
