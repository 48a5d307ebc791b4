"""How long a sequence may get, read from a model config.

Decides the longest sequence a model is made for, and the one it is served with unasked. Pure.

Invariants:

1. A stretching of rotary positions counts only where `max_position_embeddings` does not have it already (vLLM 0.32:
   `_get_and_verify_max_len`).

It does not know the tokenizer's own limit: that is in another file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvquota_api.memory.models.fields import MAX_SIZE, Fields, shown

NAMES: Final = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
STRETCHED_ALREADY: Final = frozenset({"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})
LONG_ROPE: Final = frozenset({"su", "longrope"})
STRETCHED_FAMILY: Final = "gemma3"  # its model types: the number is stretched already whatever the kind of stretching

Kind = tuple[str, float | None]  # of stretching, and its factor where it has one


@dataclass(frozen=True, slots=True)
class Positions:
    """`longest`: tokens that the model is made for; `usual`: with which it is served unasked. None: not said."""

    longest: int | None
    usual: int | None


def read_positions(fields: Fields) -> Positions:
    """What a text model's config says. Raises ModelConfigError that names the field."""
    stated = _stated(fields)
    if stated is None:
        return Positions(None, None)
    kinds = _rotary(fields)
    longest = _stretched(fields, stated, kinds)
    short = any(kind in LONG_ROPE for kind, _ in kinds) and fields.has("original_max_position_embeddings")
    return Positions(longest, fields.count("original_max_position_embeddings") if short else longest)


def _stated(fields: Fields) -> int | None:
    if fields.has("model_max_length"):
        return fields.count("model_max_length")
    given = [length for name in NAMES if (length := fields.count_or_none(name)) is not None]
    return min(given, default=None)


def _stretched(fields: Fields, stated: int, kinds: tuple[Kind, ...]) -> int:
    if STRETCHED_FAMILY in (fields.text("model_type") or ""):
        return stated
    factors = [factor for kind, factor in kinds if kind not in STRETCHED_ALREADY and factor is not None]
    return max(1, min(int(stated * (factors[-1] if factors else 1.0)), MAX_SIZE))


def _rotary(fields: Fields) -> tuple[Kind, ...]:
    name = fields.first(("rope_scaling", "rope_parameters"))
    if not fields.has(name):
        return ()
    rope = fields.part(name)
    nested = [part for part in rope.values if isinstance(rope.values[part], Mapping)]
    return tuple(_kind(rope.part(part)) for part in nested) if nested else (_kind(rope),)


def _kind(rope: Fields) -> Kind:
    return rope.text(rope.first(("rope_type", "type"))) or "default", _factor(rope)


def _factor(rope: Fields) -> float | None:
    value: Any = rope.values.get("factor")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SIZE:
        rope.refuse("factor", f"{shown(value)} is not a positive number")
    return float(value)
