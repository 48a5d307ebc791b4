"""What a log says of an engine's flags, in the words of EngineInputs.

Decides which flag is which, and which of several lines counts: what the engine resolved rather than what it was asked
for. Pure. Invariants:

1. What the log does not say is missing: the result never holds a default that the log does not print.
2. A value that is not of the field's type is missing too.

It does not know the platform of a GPU, nor how many layers a drafter of its own has: logs do not say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from kvquota_api.memory.startup_log.configurations import SPECULATIVE
from kvquota_api.memory.startup_log.facts import LogFacts
from kvquota_api.memory.startup_log.figures import Ratio, Size, ratio

_WHOLE: Final = re.compile(r"[0-9]{1,18}")
_FRACTION: Final = re.compile(r"[01](?:\.[0-9]{1,12})?|\.[0-9]{1,12}")
_TRUE: Final = ("True", "true", "enabled", "1")
_FALSE: Final = ("False", "false", "disabled", "0")

Reading = Callable[[str], Any]


def _whole(value: str) -> int | None:
    """A count of something that is there: 0 says no more than nothing."""
    return int(value) or None if _WHOLE.fullmatch(value) else None


def _yes(value: str) -> bool | None:
    if value in _TRUE:
        return True
    return False if value in _FALSE else None


def _no(value: str) -> bool | None:
    yes = _yes(value)
    return None if yes is None else not yes


def _type(value: str) -> str:
    return value.removeprefix("torch.")


_VLLM: Final[Mapping[str, tuple[Reading, tuple[str, ...]]]] = {
    "tensor": (_whole, ("tensor_parallel_size",)),
    "pipeline": (_whole, ("pipeline_parallel_size",)),
    "data": (_whole, ("data_parallel_size",)),
    "decode_context": (_whole, ("decode_context_parallel_size",)),
    "dtype": (_type, ("dtype",)),
    "kv_dtype": (_type, ("kv_cache_dtype",)),
    "state_dtype": (_type, ("mamba_ssm_cache_dtype",)),
    "block_tokens": (_whole, ("block_size",)),
    "max_model_len": (_whole, ("max_seq_len", "max_model_len")),
    "max_num_batched_tokens": (_whole, ("max_num_batched_tokens",)),
    "max_num_seqs": (_whole, ("max_num_seqs",)),
    "prefix_caching": (_yes, ("enable_prefix_caching",)),
    "async_scheduling": (_yes, ("async_scheduling",)),
    "hybrid_manager": (_no, ("disable_hybrid_kv_cache_manager",)),
    "speculative_tokens": (_whole, (f"{SPECULATIVE}.num_speculative_tokens",)),
}
_SGLANG: Final[Mapping[str, tuple[Reading, tuple[str, ...]]]] = {
    "tensor": (_whole, ("tp_size",)),
    "pipeline": (_whole, ("pp_size",)),
    "data": (_whole, ("dp_size",)),
    "dtype": (_type, ("dtype",)),
    "kv_dtype": (_type, ("kv_cache_dtype",)),
    "block_tokens": (_whole, ("page_size",)),
    "max_model_len": (_whole, ("context_len", "context_length")),
    "max_num_batched_tokens": (_whole, ("chunked_prefill_size",)),
    "max_num_seqs": (_whole, ("max_running_requests",)),
    "prefix_caching": (_no, ("disable_radix_cache",)),
    "speculative_tokens": (_whole, ("speculative_num_draft_tokens",)),
}
_LLAMA_CPP: Final[Mapping[str, tuple[Reading, tuple[str, ...]]]] = {
    "max_model_len": (_whole, ("n_ctx",)),
    "max_num_batched_tokens": (_whole, ("n_ubatch",)),
    "slots": (_whole, ("n_slots", "n_seq_max", "n_parallel")),
    "unified": (_yes, ("kv_unified",)),
    "kv_dtype": (_type, ("type_k",)),
}
_TENSORRT: Final[Mapping[str, tuple[Reading, tuple[str, ...]]]] = {
    "max_num_seqs": (_whole, ("maxNumSequences", "maxBatchSize")),
    "max_model_len": (_whole, ("maxSequenceLen",)),
}
_PREDICTION: Final = ("NextN", "MTP")  # how SGLang names the prediction layers of a model, which it loads one at a time
_STORED: Final = {"float8_e4m3fn": "fp8_e4m3", "float8_e4m3fnuz": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}
_FIELDS: Final = {"vLLM": _VLLM, "SGLang": _SGLANG, "LlamaCpp": _LLAMA_CPP, "TensorRTLLM": _TENSORRT}


def facts_to_inputs(facts: LogFacts) -> dict[str, Any]:
    """The fields of EngineInputs that the log says, by name; empty where the log is of no known engine."""
    if facts.engine is None:
        return {}
    said: dict[str, Any] = {"engine": facts.engine}
    for field, (read, names) in _FIELDS[facts.engine].items():
        setting = facts.setting(*names)
        said[field] = None if setting is None else read(setting.value)
    said |= {field: value for field, value in _printed(facts).items() if value is not None}
    if said.get("kv_dtype") in (None, "auto"):
        said["kv_dtype"] = _stored(facts) or said.get("kv_dtype")
    return {field: value for field, value in said.items() if value is not None}


def _stored(facts: LogFacts) -> str | None:
    """The type of the cache as it was allocated, in the words of the flag: keys and values where they differ."""
    stored = next((cache for cache in facts.caches if cache.key_type is not None), None)
    if stored is None or stored.key_type is None:
        return None
    if facts.engine == "LlamaCpp" and stored.value_type not in (None, stored.key_type):
        return f"{stored.key_type}/{stored.value_type}"
    return _STORED.get(stored.key_type, stored.key_type)


def model_name(facts: LogFacts) -> str | None:
    """The model as the engine was asked for it: a repository's name or a path."""
    setting = facts.setting("model", "model_path", "model_tag")
    return None if setting is None else setting.value


def card_memory(facts: LogFacts) -> Size | None:
    """Bytes of the smallest card that the log tells of; on the CPU the memory of the node."""
    return _least([rank.total for rank in facts.ranks if rank.total is not None])


def memory_fraction(facts: LogFacts) -> Ratio | None:
    """The part of the card that the engine may use, of SGLang the part of what was free before loading: as it was told,
    else of the process with the least; of several that may be the same the most exact."""
    asked = facts.setting("gpu_memory_utilization", "mem_fraction_static")
    if asked is not None and _FRACTION.fullmatch(asked.value):
        return ratio(asked.value, asked.line)
    said = [rank.memory_fraction for rank in facts.ranks if rank.memory_fraction is not None]
    least = min(said, key=lambda each: each.value, default=None)
    if least is None:
        return None
    same = [each for each in said if each.value - least.value <= each.rounding + least.rounding]
    return min(same, key=lambda each: (each.rounding, each.value))


def kv_memory(facts: LogFacts) -> Size | None:
    """Bytes of one GPU that the engine has for its KV cache: as it was told, else of the process with the least.

    TensorRT-LLM takes a fraction of what it calls available, so there what it took counts.
    """
    told = facts.setting("kv_cache_memory_bytes")
    if told is not None and _WHOLE.fullmatch(told.value):
        return Size(int(told.value), 0, told.line)
    left = [rank.available_kv for rank in facts.ranks if rank.available_kv is not None]
    taken = _allocated(facts)
    return _least((taken or left) if facts.engine == "TensorRTLLM" else (left or taken))


def _least(sizes: list[Size]) -> Size | None:
    """The smallest; of several that may be the same the most exact."""
    least = min(sizes, key=lambda size: size.bytes, default=None)
    if least is None:
        return None
    same = [size for size in sizes if size.bytes - least.bytes <= size.rounding + least.rounding]
    return min(same, key=lambda size: (size.rounding, size.bytes))


def _allocated(facts: LogFacts) -> list[Size]:
    """What the caches of each process take: its caches one by one where it prints them, else the sum that it prints.

    llama.cpp is one process that prints caches over all devices, in its older forms their sum, and always the devices.
    """
    ranks = dict.fromkeys(cache.rank for cache in facts.caches)
    if ranks:
        return [_total([cache.size for cache in facts.caches if cache.rank == rank]) for rank in ranks]
    sums = [(rank.label, rank.allocated_kv) for rank in facts.ranks if rank.allocated_kv is not None]
    if facts.engine != "LlamaCpp" or not sums:
        return [size for _, size in sums]
    return [size for label, size in sums if label is None] or [_total([size for _, size in sums])]


def _total(sizes: list[Size]) -> Size:
    return Size(sum(each.bytes for each in sizes), sum(each.rounding for each in sizes), sizes[0].line)


def _printed(facts: LogFacts) -> dict[str, Any]:
    """What other lines than the configuration say."""
    blocks = next((rank.block_tokens for rank in facts.ranks if rank.block_tokens is not None), None)
    lengths = [rank.concurrency_length for rank in facts.ranks if rank.concurrency_length is not None]
    length = min(lengths, key=lambda each: each.value, default=None)
    return {
        "version": None if facts.version is None else facts.version.value,
        "platform": "cpu" if _on_cpu(facts) else None,
        "block_tokens": None if blocks is None else blocks.value,
        "max_model_len": None if length is None else length.value,
        "hybrid_manager": None if facts.notice("HybridDisabled") is None else False,
        "speculative": _drafter(facts),
        "draft_layers": _draft_layers(facts),
    }


def _on_cpu(facts: LogFacts) -> bool:
    device = facts.setting("device_config")
    return (device is not None and device.value == "cpu") or (facts.device is not None and facts.device.value == "CPU")


def _draft_layers(facts: LogFacts) -> int | None:
    """Layers of a drafter that SGLang loads after the model: one, if it is the model's own multi-token prediction."""
    loaded = [each.value for each in facts.settings if each.name == "architecture"]
    own = facts.engine == "SGLang" and any(name.endswith(_PREDICTION) for name in loaded)
    return 1 if own else None


def _drafter(facts: LogFacts) -> dict[str, Any] | None:
    """The drafter as the engine's own flag describes it."""
    prefix = f"{SPECULATIVE}."
    said = {each.name.removeprefix(prefix): each.value for each in facts.settings if each.name.startswith(prefix)}
    return {name: _whole(value) or value for name, value in said.items()} or None
