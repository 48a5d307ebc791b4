"""What each layer of a model keeps for a running sequence: the kinds of cache, in sizes of the whole model.

Pure values. Invariants:

1. Sizes are those of the whole model, before it is spread over GPUs; elements, not bytes: types and spreading are an
   engine's matter.
2. A layer that keeps nothing (an MLP, or one that reads another layer's cache) is an empty tuple, so that a pipeline
   stage can be cut by the number of layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Dtype = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True)
class Attention:
    """Keeps K and V per token: MHA, GQA, MQA.

    `kv_heads`; `key_dim`, `value_dim`: elements per head. `window`: tokens that a sliding layer looks back, `chunk`:
    tokens of a chunk of a chunked-local layer, both None for full attention.
    """

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Keeps K and V of what the encoder made, whatever the sequence's length."""

    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class Latent:
    """MLA: keeps one latent of `rank` and one position part of `rope` elements per token, the same on every GPU.

    `sparse`: only some tokens are attended to (an indexer chooses them); `window`: tokens that a sliding layer looks
    back. `whole`: the keys and values that it stands for, which an engine keeps that has no form of its own for
    latents; None where the config does not say, or no engine does. Latents that differ in it alone are equal: it is
    nothing that is kept beside them.
    """

    rank: int
    rope: int
    sparse: bool = False
    window: int | None = None
    whole: Attention | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Indexer:
    """Keeps one key of `head_dim` elements per `ratio` tokens for choosing what a sparse layer attends to."""

    head_dim: int
    ratio: int = 1


@dataclass(frozen=True, slots=True)
class Record:
    """DeepSeek-V4: keeps one record of `dim` elements, of which `rope` position, per `ratio` tokens.

    `window`: tokens that a layer without compression looks back, None where every record is kept.
    """

    dim: int
    rope: int
    ratio: int = 1
    window: int | None = None


@dataclass(frozen=True, slots=True)
class CompressorState:
    """What a compressor has yet to fold into records of `ratio` tokens: `width` fp32 elements per token of `window`."""

    width: int
    ratio: int
    window: int


@dataclass(frozen=True, slots=True)
class PoolTail:
    """The pool of `pool` tokens that an indexer is still filling: a key and a gate of `head_dim` elements per token."""

    head_dim: int
    pool: int


@dataclass(frozen=True, slots=True)
class Mamba1State:
    """Selective state space: `inner` channels of `state` elements, and `conv` - 1 past inputs per channel."""

    inner: int
    state: int
    conv: int


@dataclass(frozen=True, slots=True)
class Mamba2State:
    """`heads` of `head_dim` x `state` elements; the convolution runs over inner channels and 2 x `groups` x `state`."""

    heads: int
    head_dim: int
    state: int
    groups: int
    conv: int


@dataclass(frozen=True, slots=True)
class GatedDeltaState:
    """Gated delta net: `value_heads` of `key_dim` x `value_dim`; the convolution runs over keys twice and values."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int


@dataclass(frozen=True, slots=True)
class KimiDeltaState:
    """Kimi delta attention: `heads` of `head_dim` squared; three convolutions over `heads` x `head_dim`.

    `bounded`: its gate has a lower bound, for which engines have a kernel of their own.
    """

    heads: int
    head_dim: int
    conv: int
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class ShortConvState:
    """Gated short convolution: `conv` - 1 past inputs of `channels`."""

    channels: int
    conv: int


@dataclass(frozen=True, slots=True)
class LightningState:
    """Lightning (linear) attention: `heads` of `head_dim` squared, no convolution."""

    heads: int
    head_dim: int


StateCache = Mamba1State | Mamba2State | GatedDeltaState | KimiDeltaState | ShortConvState | LightningState
Cache = Attention | CrossAttention | Latent | Indexer | Record | CompressorState | PoolTail | StateCache
Layer = tuple[Cache, ...]


@dataclass(frozen=True, slots=True)
class Quantisation:
    """What the config declares of the checkpoint's quantisation.

    `method`: as the config names it, in lower case, "" where it does not; `kv_scheme`: of the cache, None where it
    declares none that engines heed: "fp8", "nvfp4", or what the config says in lower case.
    """

    method: str
    kv_scheme: str | None


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model as its caches are concerned.

    `architecture`: the entry of the config's `architectures`; `layers`: in order; `draft_layers`: those of the
    multi-token prediction heads that the checkpoint carries, used only with speculation; `heads`: query heads, which
    tensor parallelism has to divide; `max_positions`: tokens, None where the config does not say; `dtype`: that of the
    checkpoint, None where the config does not say; `state_dtype`: of recurrent state where config or family fixes one,
    None where it follows the model; `usual_positions`: the longest sequence with which it is served unasked, less than
    `max_positions` only for positions stretched by "longrope".
    """

    architecture: str
    model_type: str
    layers: tuple[Layer, ...]
    draft_layers: tuple[Layer, ...]
    heads: int
    vocabulary: int
    max_positions: int | None
    dtype: Dtype | None
    state_dtype: Dtype | None = None
    quantisation: Quantisation | None = None
    encoder_decoder: bool = False
    usual_positions: int | None = None
