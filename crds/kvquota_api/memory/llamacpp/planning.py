"""The KV cache that llama.cpp needs for its context, divided over slots.

Decides cells and bytes. Pure.

    context  ->  slots x (context / slots, up to whole 256)  cells in the layers that keep every token
                 slots x (window + micro-batch, up to whole 256, at most the former)  cells in sliding layers
                 slots  cells of recurrent state
    unified: one stream of the whole context, with slots x window + micro-batch cells in sliding layers

Invariants:

1. llama.cpp takes what its context needs when it starts, not what is left: the bytes given only bound it.
2. A running request holds its whole slot, whatever its length; in a unified cache, as many cells as it has tokens.
3. The sizes are of all GPUs together.
4. Whether a file has the tensors of latent attention is not in the config: a plan with latents warns of what one
   without them keeps.

It does not know: V padded to the widest layer where flash attention is off, how layers are spread over GPUs, and the
paddings of builds before 6868 (October 2025).

Source: src/llama-context.cpp, src/llama-kv-cache-iswa.cpp of build 11434.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.memory.cache_plan import CacheGroup, CachePlan
from kvquota_api.memory.errors import EngineUnknownError, PlanError, PoolTooSmallError
from kvquota_api.memory.inputs import LONGEST, EngineInputs
from kvquota_api.memory.lengths import positions_of
from kvquota_api.memory.llamacpp.cells import Cells, cells_of
from kvquota_api.memory.llamacpp.types import CacheTypes, cache_types
from kvquota_api.memory.models.layers import Latent, ModelShape

PAD_TOKENS: Final = 256  # a slot's context and its window are rounded up to it (GGML_PAD in llama-context.cpp)
MICRO_BATCH_TOKENS: Final = 512  # tokens computed at once (--ubatch-size)
PLANNED_BUILD: Final = 11434  # whose rules these are, where no version is given


@dataclass(frozen=True, slots=True)
class _Context:
    """`streams` of `each` tokens, which `slots` sequences share, and tokens computed at once.

    There are as many streams as slots, or one.
    """

    slots: int
    streams: int
    micro_batch: int
    each: int = 0

    def sliding(self, window: int) -> int:
        """Cells of one stream in layers that keep that window."""
        return _padded(min(self.each, window * self.slots // self.streams + self.micro_batch))

    def held(self, cells: Cells) -> int:
        """Bytes of all streams and of the state of all slots."""
        stream = self.each * cells.full + self.sliding(cells.window) * cells.sliding
        return self.streams * stream + self.slots * cells.state


def plan_cache(model: ModelShape, inputs: EngineInputs, kv_bytes: int) -> CachePlan:
    """The cache that llama.cpp allocates for `max_model_len` tokens (its context, of all slots together).

    `kv_bytes`: what there is for it; 0: as much as it needs. With LONGEST, or without `max_model_len` where bytes are
    given, the longest context that fits, at most the model's. `max_num_batched_tokens` is llama.cpp's micro-batch.
    The plan's `max_model_len` is what one slot holds. Where the context does not fit, its bytes pass those given and
    its concurrency is 0. Raises PoolTooSmallError where none fits, EngineUnknownError, UnknownArchitectureError,
    ModelConfigError.
    """
    types, type_notes = cache_types(inputs.kv_dtype)
    cells = cells_of(model, inputs, types)
    micro_batch, batch_notes = _micro_batch(inputs, cells)
    slots = inputs.slots or 1
    empty = _Context(slots, inputs.streams, micro_batch)
    total, length_notes = _asked(model, inputs, kv_bytes)
    context = _divided(empty, total) if total else _longest(empty, cells, positions_of(model), kv_bytes)
    notes = (*_default_notes(inputs), *type_notes, *batch_notes, *length_notes)
    warnings = (*_block_warnings(inputs), *_latent_warnings(model, inputs, types, cells))
    plan = replace(_plan(context, cells), assumptions=notes, warnings=warnings)
    if not kv_bytes or plan.min_bytes <= kv_bytes:
        return plan
    refused = "llama.cpp does not start: its context does not fit"
    return replace(plan, concurrency=Fraction(0), warnings=(refused, *warnings))


def _default_notes(inputs: EngineInputs) -> tuple[str, ...]:
    """What is planned for where the flags of the server are not given."""
    defaults = (
        (inputs.version, f"engine-version: build {PLANNED_BUILD} of llama.cpp, the newest that is known"),
        (inputs.block_tokens, "block-size: 1 token, as llama.cpp counts single cells"),
        (inputs.slots, "slots: 1, which holds the whole context; current servers choose 4 that share it"),
        (inputs.unified, "kv-unified: off, so that every slot has a part of its own"),
    )
    return tuple(note for given, note in defaults if given is None)


def _block_warnings(inputs: EngineInputs) -> tuple[str, ...]:
    if inputs.block_tokens in (None, 1):
        return ()
    return (f"block-size: llama.cpp counts single cells, not blocks of {inputs.block_tokens} tokens",)


def _latent_warnings(model: ModelShape, inputs: EngineInputs, types: CacheTypes, cells: Cells) -> tuple[str, ...]:
    """The other size that the same model may have: its file decides, which nobody has shown."""
    if not inputs.latent or not any(isinstance(cache, Latent) for layer in model.layers for cache in layer):
        return ()
    try:
        whole = cells_of(model, replace(inputs, latent=False), types)
    except PlanError:
        return ()
    return (
        f"latent attention: {cells.full:,} B per token, if the file has the tensors for it; a file made without the MLA"
        f" tensors (before April 2025) keeps {whole.full:,} B per token: plan such a file with --no-mla",
    )


def _micro_batch(inputs: EngineInputs, cells: Cells) -> tuple[int, tuple[str, ...]]:
    if inputs.max_num_batched_tokens is not None:
        return inputs.max_num_batched_tokens, ()
    note = f"max-num-batched-tokens: {MICRO_BATCH_TOKENS}, llama.cpp's micro-batch, which sliding layers keep too"
    return MICRO_BATCH_TOKENS, (note,) * bool(cells.sliding)


def _asked(model: ModelShape, inputs: EngineInputs, kv_bytes: int) -> tuple[int, tuple[str, ...]]:
    """Tokens of the whole context; 0: the longest that fits."""
    if inputs.max_model_len not in (None, LONGEST):
        return inputs.max_model_len or 0, ()
    if kv_bytes:
        return 0, ("max-model-len: the longest context that fits, at most the model's",)
    return positions_of(model), (f"max-model-len: {positions_of(model)} tokens, the longest of the model's config",)


def _divided(empty: _Context, total: int) -> _Context:
    each = _padded(_padded(total) // empty.streams)
    if not each:
        raise EngineUnknownError(f"slots: {empty.slots} slots leave no token of a context of {total}: lower them")
    return replace(empty, each=each)


def _longest(empty: _Context, cells: Cells, positions: int, kv_bytes: int) -> _Context:
    """The longest slots, in steps of PAD_TOKENS, that fit. Raises PoolTooSmallError."""
    steps = max(1, positions // empty.streams // PAD_TOKENS)
    low, high = 1, steps
    while low < high:
        middle = (low + high + 1) // 2
        if replace(empty, each=middle * PAD_TOKENS).held(cells) <= kv_bytes:
            low = middle
        else:
            high = middle - 1
    context = replace(empty, each=low * PAD_TOKENS)
    if context.held(cells) > kv_bytes:
        raise PoolTooSmallError(
            f"{kv_bytes} bytes of KV cache do not hold {PAD_TOKENS} tokens in each of {empty.slots} slots:"
            f" give at least {context.held(cells)} bytes"
        )
    return context


def _plan(context: _Context, cells: Cells) -> CachePlan:
    """Counted in cells; a model of which no layer keeps every token, in slots."""
    tokens = context.streams * context.each
    held = context.held(cells)
    return CachePlan(
        blocks=tokens if cells.full else context.slots,
        null_blocks=0,
        block_tokens=1 if cells.full else context.each,
        bytes_per_token=cells.full or cells.sliding,
        bytes_per_block=cells.full or held // context.slots,
        kv_bytes=held,
        tokens=tokens,
        logged_tokens=tokens,
        concurrency=Fraction(context.streams) if cells.full else Fraction(context.slots),
        max_model_len=context.each,
        min_bytes=held,
        groups=tuple(_groups(context, cells)),
    )


def _groups(context: _Context, cells: Cells) -> list[CacheGroup]:
    """The layers that keep every token cost a request its cells, the buffers beside them nothing there; where there are
    no such layers, a request costs its slot."""
    free = LayerGroup(kind="State", block_tokens=1)
    slot = LayerGroup(kind="State", block_tokens=1, fixed_blocks=1)
    parts = (
        ("Full", cells.full_layers, cells.full, _cost(context)),
        ("Sliding", cells.sliding_layers, cells.sliding, free if cells.full else slot),
        ("State", cells.state_layers, cells.state, free if cells.full or cells.sliding else slot),
    )
    return [CacheGroup(kind, layers, page, cost) for kind, layers, page, cost in parts if layers]


def _cost(context: _Context) -> LayerGroup:
    if context.streams == context.slots:
        return LayerGroup(kind="State", block_tokens=1, fixed_blocks=context.each)
    return LayerGroup(kind="Full", block_tokens=1)


def _padded(tokens: int) -> int:
    return -(-tokens // PAD_TOKENS) * PAD_TOKENS
