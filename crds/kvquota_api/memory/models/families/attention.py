"""Models in which every layer is attention over keys and values: full, sliding or chunked.

Decides how many KV heads of which size each layer keeps, and how far back. Pure.

Invariants:

1. A layer without a window of its own takes the model's only where all layers slide, or where the config does not
   tell kinds of layers apart (vLLM 0.32: CacheConfig.sliding_window).
2. A family that does not tell layers apart refuses a config that does.

It does not know layers that keep anything else than keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvquota_api.memory.errors import UnknownArchitectureError
from kvquota_api.memory.models.families.stack import Reader, Stack
from kvquota_api.memory.models.fields import Fields, Names
from kvquota_api.memory.models.layers import Attention

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
CHUNKED: Final = "chunked_attention"
WORDS: Final = {FULL: FULL, "attention": FULL, SLIDING: SLIDING}

Pattern = Callable[[Fields, int], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Heads:
    """How a family names the sizes of its attention.

    `kv_heads` empty: as many as query heads; `head_dim` empty: always hidden size / heads. Where a config has none of
    the names, the same.
    """

    layers: Names = ("num_hidden_layers",)
    hidden: Names = ("hidden_size",)
    heads: Names = ("num_attention_heads",)
    kv_heads: Names = ("num_key_value_heads",)
    head_dim: Names = ("head_dim",)

    def query(self, fields: Fields) -> int:
        """Query heads."""
        return fields.count(fields.first(self.heads))

    def attention(self, fields: Fields) -> Attention:
        """What a layer of full attention keeps."""
        heads = self.query(fields)
        dim = self._dim(fields, heads)
        return Attention(self._kv_heads(fields, heads), dim, dim)

    def _kv_heads(self, fields: Fields, heads: int) -> int:
        name = next((each for each in self.kv_heads if fields.has(each)), None)
        if name is None:
            return heads
        kv_heads = fields.count(name)
        if heads % kv_heads:
            fields.refuse(name, f"{kv_heads} does not divide the {heads} query heads")
        return kv_heads

    def _dim(self, fields: Fields, heads: int) -> int:
        name = next((each for each in self.head_dim if fields.says(each)), None)
        if name is not None:
            return fields.count(name)
        hidden = fields.first(self.hidden)
        size = fields.count(hidden)
        if size % heads:
            fields.refuse(hidden, f"{size} is not a multiple of the {heads} query heads, and there is no head size")
        return size // heads


PLAIN: Final = Heads()


@dataclass(frozen=True, slots=True)
class Windows:
    """How a family slides.

    `told_apart`: its layers look at `layer_types`; `pattern`: the kinds of its layers where the config has none;
    `gate`: a flag without which the window is not used; `more`: tokens that its layers see beyond the window.
    """

    told_apart: bool = False
    pattern: Pattern | None = None
    gate: str | None = None
    more: int = 0

    def words(self, fields: Fields, layers: int) -> tuple[str, ...] | None:
        """The kind of each layer, None where neither config nor family tells them apart."""
        if fields.has("layer_types"):
            return fields.words("layer_types", layers, WORDS)
        return self.pattern(fields, layers) if self.pattern is not None else None

    def of_layers(self, fields: Fields, layers: int) -> tuple[int | None, ...]:
        """The window of each layer in tokens."""
        words = self.words(fields, layers)
        window = self._window(fields)
        whole = window if words is None or set(words) == {SLIDING} else None
        if words is None or not self.told_apart:
            if window is not None:
                self._refuse_mixed(words)
            return (whole,) * layers
        own = None if window is None else window + self.more
        return tuple(own if word == SLIDING else whole for word in words)

    def _window(self, fields: Fields) -> int | None:
        if self.gate is not None and not fields.flag(self.gate, missing=False):
            return None
        return fields.size_or_none("sliding_window") or None

    def _refuse_mixed(self, words: tuple[str, ...] | None) -> None:
        if words is not None and len(set(words)) > 1:
            raise UnknownArchitectureError(
                "layer_types: only some layers slide, which the planner does not know of this family"
            )


NEVER_APART: Final = Windows()
BY_TYPE: Final = Windows(told_apart=True)


def uniform(heads: Heads = PLAIN, windows: Windows = NEVER_APART) -> Reader:
    """Layers of one size that differ at most in their window."""

    def read(fields: Fields) -> Stack:
        own = heads.attention(fields)
        slid = windows.of_layers(fields, fields.layers(heads.layers))
        return Stack(tuple((with_window(own, window),) for window in slid), heads.query(fields))

    return read


def with_window(own: Attention, window: int | None) -> Attention:
    """The same heads, looking back `window` tokens."""
    return Attention(own.kv_heads, own.key_dim, own.value_dim, window)


def every(number: int, field: str | None = None) -> Pattern:
    """Every `number`th layer is full, the others slide; `field` may say another number."""

    def pattern(fields: Fields, layers: int) -> tuple[str, ...]:
        step = number if field is None else fields.count(field, missing=number)
        return tuple(SLIDING if (index + 1) % step else FULL for index in range(layers))

    return pattern


def first_of(number: int) -> Pattern:
    """Of each `number` layers the first is full, the others slide."""
    return lambda _, layers: tuple(SLIDING if index % number else FULL for index in range(layers))


def last_of(number: int) -> Pattern:
    """Counted from the last layer, every `number`th is full."""
    return lambda _, layers: tuple(SLIDING if (layers - 1 - index) % number else FULL for index in range(layers))


def all_full(_: Fields, layers: int) -> tuple[str, ...]:
    """No layer slides."""
    return (FULL,) * layers


def after_prefix(fields: Fields, layers: int) -> tuple[str, ...]:
    """The first `first_k_dense_replace` layers have a pattern of their own, and so have those after them."""
    dense = fields.size("first_k_dense_replace", missing=0)
    if dense > layers:
        fields.refuse("first_k_dense_replace", f"{dense} is more than the {layers} layers")
    prefix = every(1, "prefix_dense_sliding_window_pattern")(fields, dense)
    return (*prefix, *every(4, "sliding_window_pattern")(fields, layers - dense))


def stated(fields: Fields, layers: int) -> tuple[str, ...]:
    """The config has to say it."""
    return fields.words("layer_types", layers, WORDS)


def stated_where(gate: str) -> Pattern:
    """No layer slides unless `gate` says so, and then the config has to say which."""
    return lambda fields, layers: (stated if fields.flag(gate, missing=False) else all_full)(fields, layers)


def from_layer(field: str, missing: int, gate: str) -> Pattern:
    """Layers from that with the number in `field` slide, if `gate` says that any does."""

    def pattern(fields: Fields, layers: int) -> tuple[str, ...]:
        start = fields.size(field, missing=missing) if fields.flag(gate, missing=False) else layers
        return tuple(SLIDING if index >= start else FULL for index in range(layers))

    return pattern
