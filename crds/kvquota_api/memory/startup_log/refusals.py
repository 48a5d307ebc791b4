"""How engines say that they do not start.

Pure. A message is read as a whole: its words may be wrapped, in some versions its brackets are not balanced, and some
say "models's".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kvquota_api.memory.startup_log.facts import Refusal
from kvquota_api.memory.startup_log.figures import COUNT, NUMBER, SIZE, count, ratio, size
from kvquota_api.memory.startup_log.rules import Finding, Place, RankFact, Rule, following


def _above_capacity(match: re.Match[str], place: Place) -> Iterable[Finding]:
    yield Refusal("LengthAboveCapacity", place.line, length=_number(match[1]), capacity=_number(match[2]))


def _above_memory(match: re.Match[str], place: Place) -> Iterable[Finding]:
    yield Refusal(
        "LengthAboveMemory",
        place.line,
        length=_number(match[1]),
        needed=size(match[2], match[3], place.line),
        available=size(match[4], match[5], place.line),
        estimated_length=None if match[6] is None else _number(match[6]),
    )


def _states(match: re.Match[str], place: Place) -> Iterable[Finding]:
    yield Refusal("StatesExhausted", place.line, sequences=_number(match[1]), capacity=_number(match[2]))


def _no_memory(_: re.Match[str], place: Place) -> Iterable[Finding]:
    yield Refusal("NoMemoryForCache", place.line)


def _taken(match: re.Match[str], place: Place) -> Iterable[Finding]:
    """`Free memory on device cuda:0 (3.1/23.64 GiB) on startup is less than desired ... (0.9, 21.28 GiB)`."""
    needed, available = size(match[5], match[6], place.line), size(match[1], match[3], place.line)
    yield Refusal("CardTaken", place.line, needed=needed, available=available)
    yield RankFact(place.rank, "total", size(match[2], match[3], place.line))
    yield RankFact(place.rank, "free", available)
    yield RankFact(place.rank, "memory_fraction", ratio(match[4], place.line))
    yield RankFact(place.rank, "requested", needed)


def _number(digits: str) -> int:
    return count(digits, 0).value


RULES: Final = (
    Rule(
        "vLLM",
        "max seq len",
        following(
            rf" \({COUNT}\) is larger than the maximum number of tokens that can be stored in KV cache \({COUNT}\)"
        ),
        _above_capacity,
    ),
    Rule(
        "vLLM",
        "To serve at least",
        following(
            rf" one request with the models?'s max seq len \({COUNT}\), \(?{SIZE} KV cache is needed, which is larger "
            rf"than the available KV cache memory \({SIZE}\)\."
            rf"(?: Based on the available memory, the estimated maximum model length is {COUNT})?"
        ),
        _above_memory,
    ),
    Rule(
        "vLLM",
        "max_num_seqs",
        following(rf" \({COUNT}\) exceeds available Mamba cache blocks \({COUNT}\)"),
        _states,
    ),
    Rule("vLLM", "No available memory", following(" for the cache blocks"), _no_memory),
    Rule(
        "vLLM",
        "Free memory on device",
        following(
            rf"(?: \w{{1,8}}:\d{{1,4}})? \({NUMBER}/{NUMBER} (GiB)\) on startup is less than (?:desired GPU memory "
            rf"utilization|the engine's budget after excluding external process's weights) \({NUMBER}, {SIZE}\)"
        ),
        _taken,
    ),
    Rule("SGLang", "Loaded weights leave", following(" no GPU memory for the KV cache"), _no_memory),
    Rule("SGLang", "Not enough memory.", following(" Please try to increase --mem-fraction-static"), _no_memory),
)
