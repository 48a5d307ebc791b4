"""How PyTorch says that an allocation failed, on CUDA and HIP, from 1.13 to today.

Pure. Invariants:

1. What the text does not have, or was cut from it (a number without its unit), is None.
2. The figures are those of the text: nothing is computed from the others.

It does not know why memory was short.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kvquota_api.memory.startup_log.facts import OutOfMemory
from kvquota_api.memory.startup_log.figures import SIZE, Size, size
from kvquota_api.memory.startup_log.rules import MESSAGE_WINDOW, Finding, Place, Rule

_TRIED: Final = re.compile(rf"^ Tried to allocate {SIZE}")
_GPU: Final = re.compile(r"\bGPU (\d{1,4})\b")
_CAPACITY: Final = (re.compile(rf"total capac[a-z]{{1,4}} of {SIZE}"), re.compile(rf"\d; {SIZE} total capacity"))
_FREE: Final = (re.compile(rf"of which {SIZE} is free"), re.compile(rf"; {SIZE} free;"))
_IN_USE: Final = re.compile(rf"(?:this process|Process (\d{{1,10}})) has {SIZE} memory in use")
_ALLOCATED: Final = (re.compile(rf"{SIZE} is allocated by PyTorch"), re.compile(rf"; {SIZE} already allocated"))
_IDLE: Final = (re.compile(rf"{SIZE} is reserved by PyTorch but unallocated"),)
_RESERVED: Final = (re.compile(rf"; {SIZE} reserved in total by PyTorch"),)


def _read(match: re.Match[str], place: Place) -> Iterable[Finding]:
    text = " ".join(match[1].split())
    tried = _TRIED.search(f" {text}")
    if tried is None:
        return
    gpu, process = _GPU.search(text), _IN_USE.search(text)
    yield OutOfMemory(
        line=place.line,
        rank=place.rank,
        tried=size(tried[1], tried[2], place.line),
        gpu=None if gpu is None else int(gpu[1]),
        capacity=_first(_CAPACITY, text, place.line),
        free=_first(_FREE, text, place.line),
        in_use=None if process is None else size(process[2], process[3], place.line),
        in_use_by=None if process is None or process[1] is None else int(process[1]),
        allocated=_first(_ALLOCATED, text, place.line),
        reserved_idle=_first(_IDLE, text, place.line),
        reserved_total=_first(_RESERVED, text, place.line),
    )


def _first(patterns: Iterable[re.Pattern[str]], text: str, line: int) -> Size | None:
    for pattern in patterns:
        found = pattern.search(text)
        if found is not None:
            return size(found[1], found[2], line)
    return None


RULES: Final = (
    Rule(None, "out of memory.", re.compile(r"((?:(?!out of memory\.)[\s\S])*)"), _read, window=MESSAGE_WINDOW),
)
