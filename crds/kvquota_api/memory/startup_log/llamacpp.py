"""The lines that llama.cpp (and ik_llama.cpp) prints while it starts, in the old and the new forms.

Pure. A device's buffers are parts of that device's figures: `CUDA0` is a rank here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kvquota_api.memory.startup_log.facts import CacheFacts, OutOfMemory, Setting
from kvquota_api.memory.startup_log.figures import END, SIZE, size
from kvquota_api.memory.startup_log.rules import (
    Finding,
    Place,
    RankPart,
    Reader,
    Rule,
    following,
    notice_rule,
    version_rule,
)

_CELLS: Final = re.compile(rf"size\s{{0,8}}=\s{{0,8}}{SIZE}\s{{0,8}}\(\s{{0,8}}(\d{{1,12}})\s{{0,8}}$")
_PROPERTIES: Final = (
    "arch",
    "n_ctx_train",
    "n_layer",
    "n_head",
    "n_head_kv",
    "n_embd_head_k",
    "n_embd_head_v",
    "n_swa",
    "n_ctx",
    "n_ctx_seq",
    "n_ctx_per_seq",
    "n_ctx_slot",
    "n_seq_max",
    "n_batch",
    "n_ubatch",
    "flash_attn",
    "kv_unified",
    "n_slots",
    "n_parallel",
)


def _cells(match: re.Match[str], place: Place) -> Iterable[Finding]:
    """`size = 1024.00 MiB ( 8192 cells, 32 layers, 4/1 seqs), K (f16): ...`: the second number of sequences, if any, is
    how many times the cells are there."""
    lead = _CELLS.search(place.before)
    if lead is None:
        return
    yield CacheFacts(
        None,
        size(lead[1], lead[2], place.line),
        tokens=int(lead[3]) * int(match[3] or 1),
        layers=int(match[1]),
        sequences=int(match[2]),
        key_type=match[4],
        value_type=match[5],
    )


def _whole(match: re.Match[str], place: Place) -> Iterable[Finding]:
    """`KV self size = 1024.00 MiB, K (f16): ...`: of a latent `c^KV (q8_0): ...`; each of two caches prints its own."""
    yield RankPart(None, "allocated_kv", size(match[1], match[2], place.line))
    yield Setting("type_k", match[3], place.line)


def _buffer(name: str) -> Reader:
    """A reader of `CUDA0 <what> buffer size = 1024.00 MiB`."""

    def read(match: re.Match[str], place: Place) -> Iterable[Finding]:
        for device in place.before.split()[-1:]:
            yield RankPart(device, name, size(match[1], match[2], place.line))

    return read


def _property(name: str) -> Rule:
    def read(match: re.Match[str], place: Place) -> Iterable[Finding]:
        if not place.before[-1:].isidentifier():
            yield Setting(name, match[1], place.line)

    return Rule("LlamaCpp", name, re.compile(rf"\s{{0,24}}=\s{{0,8}}([\w.+-]{{1,60}})(?=[\s,]|$){END}"), read)


def _failed(match: re.Match[str], place: Place) -> Iterable[Finding]:
    yield OutOfMemory(place.line, None, size(match[1], match[2], place.line), gpu=int(match[3]))


RULES: Final = (
    Rule(
        "LlamaCpp",
        "cells,",
        following(
            r" (\d{1,6}) layers, (\d{1,6})(?:/\s{0,8}(\d{1,6}))? seqs\)"
            r"(?:, [KR] \((\w{1,16})\):[^,\n]{1,40}, [VS] \((\w{1,16})\):)?"
        ),
        _cells,
    ),
    notice_rule("LlamaCpp", "full-size SWA", " cache", "HybridDisabled"),
    Rule("LlamaCpp", "KV self size", following(rf" = {SIZE}, (?:K|c\^KV) \((\w{{1,16}})\)"), _whole),
    Rule("LlamaCpp", "KV buffer size", following(rf" = {SIZE}"), _buffer("allocated_kv")),
    Rule("LlamaCpp", "RS buffer size", following(rf" = {SIZE}"), _buffer("allocated_kv")),
    Rule("LlamaCpp", "model buffer size", following(rf" = {SIZE}"), _buffer("weights")),
    Rule("LlamaCpp", "compute buffer size", following(rf" = {SIZE}"), _buffer("compute")),
    Rule(
        "LlamaCpp",
        "allocating",
        following(rf" {SIZE} on device (\d{{1,4}}): (?:cuda|hip)Malloc failed: out of memory"),
        _failed,
    ),
    *(_property(name) for name in _PROPERTIES),
    version_rule("LlamaCpp", "build=", r"(\d{1,8}) commit=", begins=0),
    version_rule("LlamaCpp", "build:", r" b?(\d{1,8}) \([0-9a-f]{4,40}\)", begins=0),
)
