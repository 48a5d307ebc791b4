"""The lines that SGLang prints while it starts.

Pure. Sizes are printed as "GB" and are GiB. It does not know `server_args=` (`configurations`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kvquota_api.memory.startup_log.facts import CacheFacts
from kvquota_api.memory.startup_log.figures import COUNT, END, SIZE, Size, count, size
from kvquota_api.memory.startup_log.rules import (
    Finding,
    Place,
    RankPart,
    Reader,
    Rule,
    counted,
    following,
    setting_rule,
    size_rule,
    version_rule,
)


def _sum(*sizes: Size) -> Size:
    return Size(sum(each.bytes for each in sizes), sum(each.rounding for each in sizes), sizes[0].line)


def _allocated(match: re.Match[str], place: Place) -> Iterable[Finding]:
    """`KV Cache is allocated.`: keys and values apart, or `KV size` of a latent; newer versions print the tokens."""
    parts = [size(match[3], match[4], place.line)]
    if match[5] is not None:
        parts.append(size(match[5], match[6], place.line))
    tokens = None if match[2] is None else count(match[2], place.line).value
    yield CacheFacts(place.rank, _sum(*parts), tokens, key_type=match[1])


def _states(match: re.Match[str], place: Place) -> Iterable[Finding]:
    both = _sum(size(match[2], match[3], place.line), size(match[4], match[5], place.line))
    yield CacheFacts(place.rank, both, sequences=count(match[1], place.line).value)


def _used(name: str) -> Reader:
    """A reader of `... mem usage=55.57 GB`: a drafter prints its own, which comes on top."""

    def read(match: re.Match[str], place: Place) -> Iterable[Finding]:
        yield RankPart(place.rank, name, size(match[1], match[2], place.line))

    return read


RULES: Final = (
    Rule(
        "SGLang",
        "KV Cache is allocated.",
        following(
            r"(?: dtype: (?:torch\.)?(\w{1,24}),)?" + rf"(?: #tokens: {COUNT},)? KV? size: {SIZE}(?:, V size: {SIZE})?"
        ),
        _allocated,
    ),
    size_rule("SGLang", "SWAKVPool mem", " usage:", "allocated_kv"),
    Rule(
        "SGLang",
        "Mamba Cache is allocated.",
        following(rf" max_mamba_cache_size: {COUNT}, conv_state size: {SIZE}, ssm_state size: {SIZE}"),
        _states,
    ),
    Rule("SGLang", "max_total_num_tokens", following(rf"={COUNT}{END}"), counted("tokens")),
    setting_rule("SGLang", "context_len", rf"=(\d{{1,12}}){END}", "context_len"),
    setting_rule("SGLang", "max_running_requests", rf"=(\d{{1,12}}){END}", "max_running_requests"),
    size_rule("SGLang", "Load weight begin.", " avail mem=", "free"),
    setting_rule("SGLang", "Load weight end.", r"[^\n]{0,120}?type=(\w{1,120})", "architecture"),
    Rule("SGLang", "Load weight end.", following(rf"[^\n]{{0,200}}?mem usage={SIZE}"), _used("weights")),
    size_rule("SGLang", "Memory pool end.", " avail mem=", "free_after"),
    Rule("SGLang", "cuda graph end.", following(rf"[^\n]{{0,120}}?mem usage={SIZE}"), _used("graphs")),
    version_rule("SGLang", "sglang==", r"(\d[\w.+-]{0,80})"),
)
