"""The lines that vLLM prints while it starts: V0 and V1, 0.6 to 0.33.

Pure. It does not know whole configurations (`configurations`) and refusals (`refusals`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kvquota_api.memory.startup_log.facts import Setting
from kvquota_api.memory.startup_log.figures import COUNT, END, NUMBER, SIZE, Word, count, ratio, size
from kvquota_api.memory.startup_log.rules import (
    Device,
    Finding,
    Place,
    RankFact,
    Rule,
    counted,
    following,
    notice_rule,
    setting_rule,
    size_rule,
    sized,
    version_rule,
)

_VERSION: Final = r"v?([0-9][\w.+-]{0,80})"
_DEVICE_BLOCKS: Final = re.compile(r"#\s{0,8}(\w{1,12})\s{0,8}$")


def _pool_size(match: re.Match[str], place: Place) -> Iterable[Finding]:
    """`<device> KV cache size: 1,234 tokens`; the device is GPU, CPU, XPU, "GPU + host" ..."""
    lead = place.before.split()
    if lead[-2:] != ["KV", "cache"]:
        return
    yield RankFact(place.rank, "tokens", count(match[1], place.line))
    device = lead[-5:-2] if lead[-4:-3] == ["+"] else lead[-3:-2]
    yield Device(Word(" ".join(device), place.line))


def _blocks(match: re.Match[str], place: Place) -> Iterable[Finding]:
    """`# <device> blocks: 1224, # CPU blocks: 4096`, the device in any case; "CPU" is the memory to swap to."""
    lead = _DEVICE_BLOCKS.search(place.before)
    if lead is not None:
        yield RankFact(place.rank, "host_blocks" if lead[1] == "CPU" else "blocks", count(match[1], place.line))


def _concurrency(match: re.Match[str], place: Place) -> Iterable[Finding]:
    yield RankFact(place.rank, "concurrency_length", count(match[1], place.line))
    yield RankFact(place.rank, "concurrency", ratio(match[2], place.line))


def _budget_v0(match: re.Match[str], place: Place) -> Iterable[Finding]:
    yield RankFact(place.rank, "total", size(match[1], match[2], place.line))
    yield RankFact(place.rank, "memory_fraction", ratio(match[3], place.line))
    yield RankFact(place.rank, "requested", size(match[4], match[5], place.line))


def _budget_v1(match: re.Match[str], place: Place) -> Iterable[Finding]:
    """`(free/total GiB) on startup. Desired GPU memory utilization is (0.9, 71.26 GiB)`."""
    yield RankFact(place.rank, "free", size(match[1], match[3], place.line))
    yield RankFact(place.rank, "total", size(match[2], match[3], place.line))
    yield RankFact(place.rank, "memory_fraction", ratio(match[4], place.line))
    yield RankFact(place.rank, "requested", size(match[5], match[6], place.line))


def _budget_debug(match: re.Match[str], place: Place) -> Iterable[Finding]:
    yield RankFact(place.rank, "free", size(match[1], match[2], place.line))
    yield RankFact(place.rank, "memory_fraction", ratio(match[3], place.line))
    yield RankFact(place.rank, "requested", size(match[4], match[5], place.line))


def _given(match: re.Match[str], place: Place) -> Iterable[Finding]:
    """`Explicitly set (0.25/17.09) GiB for KV cache`: given of the node's memory."""
    yield RankFact(place.rank, "available_kv", size(match[1], match[3], place.line))
    yield RankFact(place.rank, "total", size(match[2], match[3], place.line))


def _profiled(match: re.Match[str], place: Place) -> Iterable[Finding]:
    yield RankFact(place.rank, "available_kv", size(match[1], match[2], place.line))
    yield RankFact(place.rank, "memory_fraction", ratio(match[3], place.line))


def _fraction(match: re.Match[str], place: Place) -> Iterable[Finding]:
    yield RankFact(place.rank, "memory_fraction", ratio(match[1], place.line))


def _stored_type(_: re.Match[str], place: Place) -> Iterable[Finding]:
    """`Using fp8 data type to store kv cache`."""
    yield from (Setting("kv_cache_dtype", word, place.line) for word in place.before.split()[-1:])


_V0: Final = (
    Rule(
        "vLLM",
        "total_gpu_memory",
        following(rf"\s{{0,4}}\({SIZE}\) x gpu_memory_utilization \({NUMBER}\) = {SIZE}"),
        _budget_v0,
    ),
    size_rule("vLLM", "weights", " takes?", "weights"),
    size_rule("vLLM", "non_torch_memory", " takes", "non_torch"),
    size_rule("vLLM", "activation peak", " memory takes", "activation"),
    size_rule("vLLM", "memory reserved", " for KV Cache is", "available_kv"),
    size_rule("vLLM", "total_gpu_memory", "=", "total"),
    size_rule("vLLM", "non_torch_memory", "=", "non_torch"),
    Rule("vLLM", "kv_cache_size", following(rf"={SIZE},? gpu_memory_utilization={NUMBER}"), _profiled),
    Rule("vLLM", "blocks:", following(rf"\s{{0,8}}{COUNT}{END}"), _blocks),
    Rule(
        "vLLM", "num_gpu_blocks", following(rf"(?: is)?\s{{0,4}}[:=]\s{{0,4}}{COUNT}{END}(?! with)"), counted("blocks")
    ),
)
_SIZES: Final = (
    size_rule("vLLM", "loading", " took", "weights"),
    size_rule("vLLM", "weights", " took", "weights"),
    size_rule("vLLM", "Available KV", " cache memory:", "available_kv"),
    size_rule("vLLM", "Current kv", " cache memory in use is", "available_kv"),
    size_rule("vLLM", "Graph capturing", r" finished in [\d.]{1,12} secs?, took", "graphs"),
    size_rule("vLLM", "Estimated CUDA", " graph memory:", "estimated_graphs"),
    Rule(
        "vLLM",
        "graph pool memory:",
        following(rf" {SIZE} \(actual\), {SIZE} \(estimated\)"),
        sized("graphs", "estimated_graphs"),
    ),
    Rule(
        "vLLM",
        "Actual usage",
        following(
            rf" is {SIZE} for weights?, {SIZE} for peak activation, {SIZE} for non-torch memory, "
            rf"and {SIZE} for CUDAGraph"
        ),
        sized("weights", "activation", "non_torch", "graphs"),
    ),
    Rule(
        "vLLM",
        "(weights + non-torch),",
        following(rf" {SIZE} for peak activation, and {SIZE} for CUDAGraph"),
        sized("activation", "graphs"),
    ),
    Rule(
        "vLLM",
        "Initial free memory",
        following(rf" {SIZE}, reserved {SIZE} memory for KV Cache"),
        sized("free", "available_kv"),
    ),
    Rule(
        "vLLM",
        "Initial free memory:",
        following(rf" {SIZE}; Requested memory: {NUMBER} \(util\), {SIZE}"),
        _budget_debug,
    ),
    Rule(
        "vLLM",
        "Free memory on device",
        following(rf" \({NUMBER}/{NUMBER} (GiB)\) on startup. Desired GPU memory utilization is \({NUMBER}, {SIZE}\)"),
        _budget_v1,
    ),
    Rule("vLLM", "current --gpu-memory-utilization", following(rf"={NUMBER} is equivalent"), _fraction),
    Rule("vLLM", "licitly set", following(rf" \({NUMBER}/{NUMBER}\) (GiB) for KV cache"), _given),
    Rule("vLLM", "Auto set", following(rf" \({NUMBER}/{NUMBER}\) (GiB) for KV cache"), _given),
)
_CAPACITY: Final = (
    Rule("vLLM", "size:", following(rf" {COUNT} tokens"), _pool_size),
    Rule(
        "vLLM",
        "Maximum concurrency",
        following(rf" for {COUNT} tokens per request: {NUMBER}x"),
        _concurrency,
    ),
)
_NOTICES: Final = (
    notice_rule("vLLM", "attention block size to", rf" {COUNT} tokens", "BlockTokens"),
    notice_rule("vLLM", "cache block size to", rf" {COUNT} for", "BlockTokens"),
    notice_rule("vLLM", "mamba page size by", rf" {NUMBER}%", "StatePadding"),
    notice_rule("vLLM", "Add", rf" {COUNT} padding layers", "PaddingLayers"),
    notice_rule("vLLM", "fp8_ds_mla KV", " cache format", "PackedLatent"),
    notice_rule("vLLM", "Hybrid KV cache manager", " is disabled", "HybridDisabled"),
    notice_rule("vLLM", "num_gpu_blocks_override", rf"={COUNT}{END}(?![,')])", "BlocksOverridden"),
    notice_rule("vLLM", "Auto-fit max_model_len:", rf" reduced from \d{{1,12}} to {COUNT} to fit", "LengthReduced"),
)
_SETTINGS: Final = (
    setting_rule("vLLM", "Using max model len", rf" (\d{{1,12}}){END}", "max_model_len"),
    setting_rule("vLLM", "enabled with max_num_batched_tokens", rf"=(\d{{1,12}}){END}", "max_num_batched_tokens"),
    setting_rule("vLLM", "dcp_world_size", rf" (\d{{1,6}}){END}", "decode_context_parallel_size"),
    setting_rule("vLLM", "Resolved architecture:", r" (\w{1,120})", "architecture"),
    setting_rule("vLLM", "Asynchronous scheduling", r" is (enabled|disabled)", "async_scheduling"),
    Rule("vLLM", "data type to store kv cache", following(""), _stored_type),
)
_VERSIONS: Final = (
    version_rule("vLLM", "vLLM API server version", f" {_VERSION}", begins=0),
    version_rule("vLLM", "█  version", f" {_VERSION}", begins=0),
    version_rule("vLLM", "LLM engine (", rf"{_VERSION}\) with config", begins=1),
)
RULES: Final = (*_V0, *_SIZES, *_CAPACITY, *_NOTICES, *_SETTINGS, *_VERSIONS)
