"""What a family's reader makes of a config, and what the table of families says of each. Pure values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvquota_api.memory.models.fields import Fields
from kvquota_api.memory.models.layers import Dtype, Layer


@dataclass(frozen=True, slots=True)
class Stack:
    """The layers of a model, in order, and those of its multi-token prediction heads; `heads`: query heads;
    `state_dtype`: of recurrent state where config or family fixes one."""

    layers: tuple[Layer, ...]
    heads: int
    draft_layers: tuple[Layer, ...] = ()
    state_dtype: Dtype | None = None
    encoder_decoder: bool = False


Reader = Callable[[Fields], Stack]
Drafts = Callable[[Fields, tuple[Layer, ...]], tuple[Layer, ...]]


@dataclass(frozen=True, slots=True)
class Family:
    """Models that are read alike.

    `architectures`, `types`: what their configs may have as `architectures` and `model_type`; `defaults`: what their
    config class takes for a field that is not there (only fields that real configs leave out); `knows`: fields of
    CACHE_FIELDS that `read` takes into account or that do not change the cache of this family; `drafts`: the layers of
    its prediction heads; `slides`: whether `read` knows what a `sliding_window` does to this family.
    """

    architectures: tuple[str, ...]
    types: tuple[str, ...]
    read: Reader
    defaults: Mapping[str, Any] = field(default_factory=dict)
    knows: frozenset[str] = frozenset()
    drafts: Drafts | None = None
    slides: bool = True


@dataclass(frozen=True, slots=True)
class Wrapper:
    """Models of several parts; `parts`: names that the text model's own config may have, `inside`: the architecture of
    the text model where its config does not say, None where it has to; `flat`: its fields may also stand among those
    of the whole."""

    architectures: tuple[str, ...]
    types: tuple[str, ...]
    parts: tuple[str, ...] = ("text_config",)
    inside: str | None = None
    flat: bool = False
