"""The lines that TensorRT-LLM prints while it starts, of its C++ runtime and of its PyTorch backend.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kvquota_api.memory.startup_log.facts import Setting
from kvquota_api.memory.startup_log.figures import COUNT, END, SIZE, count, size
from kvquota_api.memory.startup_log.rules import (
    Finding,
    Place,
    RankFact,
    Rule,
    counted,
    following,
    size_rule,
    sized,
    version_rule,
)

_ALLOCATIONS: Final = {
    "execution context memory": "activation",
    "runtime buffers": "compute",
    "max tokens in paged KV cache": "allocated_kv",
}
_MANAGED: Final = {"engine deserialization": "weights", "IExecutionContext creation": "activation"}


def _allocated(match: re.Match[str], place: Place) -> Iterable[Finding]:
    purpose = " ".join(match[3].split())
    yield RankFact(place.rank, _ALLOCATIONS[purpose], size(match[1], match[2], place.line))
    if match[4] is not None:
        yield RankFact(place.rank, "tokens", count(match[4], place.line))


def _managed(match: re.Match[str], place: Place) -> Iterable[Finding]:
    """`[MemUsageChange] TensorRT-managed allocation in <step>: CPU +0, GPU +14970, now: CPU 0, GPU 14970 (MiB)`."""
    step = " ".join(match[1].split())
    yield RankFact(place.rank, _MANAGED[step], size(match[2], match[3], place.line))


def _blocks(match: re.Match[str], place: Place) -> Iterable[Finding]:
    if place.before.split()[-2:] == ["Number", "of"]:
        yield RankFact(place.rank, "blocks", count(match[1], place.line))


def _model(match: re.Match[str], place: Place) -> Iterable[Finding]:
    yield Setting(match[1], match[2], place.line)


_PURPOSES: Final = "|".join(_ALLOCATIONS)
_STEPS: Final = "|".join(_MANAGED)
RULES: Final = (
    Rule(
        "TensorRTLLM",
        "Allocated",
        following(rf" {SIZE} (?:GPU memory )?for ({_PURPOSES})(?: \({COUNT}\))?"),
        _allocated,
    ),
    Rule(
        "TensorRTLLM",
        "TensorRT-managed allocation",
        following(
            rf" in ({_STEPS}): CPU [+-]\d{{1,12}}, GPU \+(\d{{1,12}}), now: CPU \d{{1,12}}, GPU \d{{1,12}} \((MiB)\)"
        ),
        _managed,
    ),
    size_rule("TensorRTLLM", "Loaded engine", " size:", "weights"),
    Rule(
        "TensorRTLLM",
        "calculating max tokens",
        following(rf" in paged kv cache: total: {SIZE}, available: {SIZE}"),
        sized("total", "available_kv"),
    ),
    size_rule("TensorRTLLM", "when calculating max", " tokens:", "available_kv"),
    size_rule("TensorRTLLM", "device total", " memory", "total"),
    Rule("TensorRTLLM", "Max tokens in paged", following(rf" KV cache: {COUNT}{END}"), counted("tokens")),
    Rule("TensorRTLLM", "Number of tokens", following(rf" per block: {COUNT}{END}"), counted("block_tokens")),
    Rule("TensorRTLLM", "blocks:", following(rf" {COUNT}{END}"), _blocks),
    Rule(
        "TensorRTLLM",
        "KV cache primary pool:",
        following(rf" {COUNT}, secondary pool: {COUNT}{END}"),
        counted("blocks", "host_blocks"),
    ),
    Rule("TensorRTLLM", "TRTGptModel", following(r" (\w{1,60}): (\w{1,60})"), _model),
    version_rule("TensorRTLLM", "TensorRT-LLM version:", r" (\d[\w.+-]{0,80})"),
)
