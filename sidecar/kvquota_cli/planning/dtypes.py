"""Types by the words of a ModelPool: one spelling inside, whatever an engine's flags and logs call them. Pure."""

from __future__ import annotations

from typing import Final

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
    """The type as a ModelPool spells it, of llama.cpp's K/V each; one that has no other name is itself."""
    return "/".join(_WORDS.get(each.lower(), each) for each in dtype.split("/"))
