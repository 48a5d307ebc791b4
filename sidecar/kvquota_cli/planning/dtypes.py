"""Types by the words of a ModelPool: one spelling inside, whatever an engine's flags and logs call them. Pure."""

from __future__ import annotations

import re
from typing import Final

_EXPLAINED: Final = re.compile(r"(\w{1,40}) ?\((\w{1,40})\)")  # a word, and what the engine made of it
_HALVES: Final = ("e4m3", "e5m2")  # of fp8, as logs shorten them

_WORDS: Final = {
    "bfloat16": "bf16",
    "f16": "fp16",
    "f32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "float32": "fp32",
    "half": "fp16",
}


def in_pool_words(dtype: str) -> str:
    """The type as a ModelPool spells it, of llama.cpp's K/V each; one that has no other name is itself.

    Of "auto(bf16)" or "fp8 (fp8_ds_mla)", as logs have it, what stands in parentheses.
    """
    return "/".join(_word(each) for each in dtype.split("/"))


def _word(dtype: str) -> str:
    explained = _EXPLAINED.fullmatch(dtype.strip())
    inner = dtype if explained is None else explained[2]
    named = f"{explained[1]}_{inner}" if explained is not None and inner in _HALVES else inner
    return _WORDS.get(named.lower(), named.lower() if named.isupper() else named)
