"""The KV cache that SGLang makes of its memory: a pool of tokens, and others for sliding and recurrent layers.

Decides tokens, pages and bytes. Pure.

    kv_bytes  =  states (slots + 1)  +  full tokens + one page  +  sliding tokens + one page

Invariants:

1. The bytes given are what SGLang prints of its pools: every pool has one page, the state pool one slot, that is never
   handed out. They are never exceeded.
2. Every pipeline stage has the same number of tokens; the stage with the widest cells decides it.
3. Only the pool that keeps every token is counted in blocks; the pools beside it cost a request nothing there.

It does not know: tokens that `--max-total-tokens` takes away, the ratios of `--swa-full-tokens-ratio` and
`--mamba-full-memory-ratio` where they are set, how a sliding pool too small for short requests holds them up, and which
attention backend is chosen by hand.

Source: model_executor/pool_configurator.py, mem_cache/kv_cache_configurator.py of SGLang 0.5.23.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.memory.cache_plan import CacheGroup, CachePlan
from kvquota_api.memory.errors import EngineUnknownError, PoolTooSmallError
from kvquota_api.memory.inputs import LONGEST, EngineInputs
from kvquota_api.memory.lengths import length_asked, positions_of
from kvquota_api.memory.models.layers import Indexer, ModelShape
from kvquota_api.memory.sglang.cells import Cells, Kept, stages
from kvquota_api.memory.sglang.dtypes import kv_dtype, kv_dtype_of
from kvquota_api.memory.sglang.releases import rules_of, version_notes
from kvquota_api.memory.sglang.states import StateTypes

SLIDING_RATIO: Final = Fraction(4, 5)  # tokens of the sliding pool per token of the full one (--swa-full-tokens-ratio)
STATE_RATIO: Final = Fraction(9, 10)  # bytes of state per byte of KV cache (--mamba-full-memory-ratio)
SPARSE_PAGE_TOKENS: Final = 64  # a page of sparse MLA, times the tokens of one indexer key
_CONV_BYTES: Final = 2  # the convolution's past inputs are kept in bf16 (SGLANG_MAMBA_CONV_DTYPE)


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the memory is cut: tokens of a page, ratio of sliding to full tokens, slots of state; `charged`: bytes of one
    sequence's state that every stage sets aside, those of the stage with the most."""

    page: int
    ratio: Fraction
    slots: int
    charged: int

    def held(self, cells: Cells, tokens: int) -> int:
        """Bytes of one stage's pools for that many tokens."""
        sliding = (self.sliding_tokens(tokens) + self.page) * cells.sliding
        return (tokens + self.page) * cells.full + sliding + (self.slots + 1) * cells.state

    def sliding_tokens(self, tokens: int) -> int:
        return int(tokens * self.ratio) // self.page * self.page

    def fits(self, cells: Cells, size: int) -> int:
        """Tokens that fit in `size` bytes, whole pages; below 0 where not even the spare page does."""
        free = size - (self.slots + 1) * self.charged - self.page * (cells.full + cells.sliding)
        return int(free // (cells.full + self.ratio * cells.sliding)) // self.page * self.page


def plan_cache(model: ModelShape, inputs: EngineInputs, kv_bytes: int) -> CachePlan:
    """The cache that SGLang makes of `kv_bytes` per GPU; without blocks where not one page fits.

    Raises PoolTooSmallError where LONGEST is asked for and nothing fits, and EngineUnknownError,
    UnknownArchitectureError, ModelConfigError for what is not known.
    """
    dtype, assumptions = kv_dtype_of(model, inputs)
    kept = Kept(model, inputs, dtype, _state_types(model, inputs), rules_of(inputs.version))
    cut = tuple(_counted(kept, cells) for cells in stages(kept))
    page, page_notes, warnings = _page(model, inputs)
    ratio, ratio_notes = _ratio(kept, cut)
    charged = max(cells.state for cells in cut)
    slots, slot_notes = _slots(inputs, charged, kv_bytes)
    layout = _Layout(page, ratio, slots, charged)
    deciding = _deciding(layout, cut)
    tokens = _tokens(layout, deciding, kv_bytes)
    length, length_notes = _length(model, inputs, tokens)
    assumed = (*version_notes(inputs.version), *assumptions, *page_notes, *ratio_notes, *slot_notes, *length_notes)
    plan = _plan(layout, deciding, tokens, length)
    held = max(layout.held(cells, tokens) for cells in cut) if tokens else 0
    return replace(
        plan,
        kv_bytes=held,
        assumptions=(*assumed, *_data_notes(inputs)),
        warnings=(*warnings, *_warnings(kept, tokens, length)),
    )


def _state_types(model: ModelShape, inputs: EngineInputs) -> StateTypes:
    """The types of recurrent state: what is asked for, else what the config says, else fp32 (mamba2_state_dtype)."""
    name = inputs.state_dtype if inputs.state_dtype != "auto" else model.state_dtype or "fp32"
    return StateTypes(_CONV_BYTES, int(kv_dtype(name).element_bytes))


def _counted(kept: Kept, cells: Cells) -> Cells:
    """The cells with the indexer's keys counted as the version prints them."""
    extra = cells.indexer if kept.rules.prints_indexer else 0
    return replace(cells, full=cells.full + extra)


def _page(model: ModelShape, inputs: EngineInputs) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    indexer = next((cache for layer in model.layers for cache in layer if isinstance(cache, Indexer)), None)
    if indexer is None:
        if inputs.block_tokens is not None:
            return inputs.block_tokens, (), ()
        return 1, ("block-size: 1 token, SGLang's page where no attention backend asks for another",), ()
    page = SPARSE_PAGE_TOKENS * indexer.ratio
    if inputs.block_tokens is None:
        return page, (f"block-size: {page} tokens, SGLang's page of sparse attention",), ()
    if inputs.block_tokens == page:
        return page, (), ()
    return page, (), (f"block-size: SGLang takes {page} tokens for sparse attention, not {inputs.block_tokens}",)


def _ratio(kept: Kept, cut: tuple[Cells, ...]) -> tuple[Fraction, tuple[str, ...]]:
    if not any(cells.sliding for cells in cut):
        return Fraction(0), ()
    if kept.model.architecture == "MiMoV2FlashForCausalLM" and not kept.rules.frees_mimo_ratio:
        return Fraction(1), ()
    return SLIDING_RATIO, (f"swa-full-tokens-ratio: {float(SLIDING_RATIO)}, SGLang's default",)


def _slots(inputs: EngineInputs, each: int, kv_bytes: int) -> tuple[int, tuple[str, ...]]:
    """Sequences whose state is kept at the same time: as many as may run where no prefix is cached, else what a share
    of the memory holds (_handle_max_mamba_cache)."""
    if not each:
        return 0, ()
    if inputs.speculative_tokens or inputs.draft_layers:
        raise EngineUnknownError("speculation with recurrent layers is not known for SGLang: set it to 0")
    if inputs.prefix_caching is False and inputs.max_num_seqs is not None:
        return inputs.max_num_seqs, ()
    slots = int((kv_bytes * STATE_RATIO / (1 + STATE_RATIO) - each) // each)
    return max(0, slots), (f"mamba-full-memory-ratio: {float(STATE_RATIO)}, SGLang's default",)


def _deciding(layout: _Layout, cut: tuple[Cells, ...]) -> Cells:
    """The stage that takes the most for a token."""
    if not any(cells.full for cells in cut):
        raise EngineUnknownError("a model whose layers keep no token to the end is not known for SGLang: plan another")
    return max(cut, key=lambda cells: cells.full + layout.ratio * cells.sliding)


def _tokens(layout: _Layout, cells: Cells, kv_bytes: int) -> int:
    """Tokens of the pool, whole pages; 0 where nothing fits."""
    if layout.charged and not layout.slots:
        return 0
    return max(0, layout.fits(cells, kv_bytes))


def _length(model: ModelShape, inputs: EngineInputs, tokens: int) -> tuple[int, tuple[str, ...]]:
    length, notes = length_asked(model, inputs)
    if length == LONGEST:
        if not tokens:
            raise PoolTooSmallError("the KV cache holds no page of tokens: give more memory")
        return min(tokens, positions_of(model)), notes
    return length, notes


def _data_notes(inputs: EngineInputs) -> tuple[str, ...]:
    if inputs.data == 1:
        return ()
    return ("data-parallel: whole replicas; with attention split by data give tensor / data as tensor-parallel",)


def _warnings(kept: Kept, tokens: int, length: int) -> tuple[str, ...]:
    hidden = not kept.rules.prints_indexer and any(isinstance(c, Indexer) for layer in kept.model.layers for c in layer)
    return (
        *(("the size that this version prints leaves out the indexer's keys, which take memory beside it",) * hidden),
        *((f"requests longer than {tokens} tokens are refused: the pool holds no more",) * (length > tokens)),
    )


def _plan(layout: _Layout, cells: Cells, tokens: int, length: int) -> CachePlan:
    need = -(-length // layout.page) * layout.page
    return CachePlan(
        blocks=tokens // layout.page,
        null_blocks=0,
        block_tokens=layout.page,
        bytes_per_token=cells.full,
        bytes_per_block=cells.full * layout.page,
        kv_bytes=layout.held(cells, tokens),
        tokens=tokens,
        logged_tokens=tokens,
        concurrency=_concurrency(layout, cells, tokens, length),
        max_model_len=length,
        min_bytes=replace(layout, slots=int(layout.charged > 0)).held(cells, need),
        groups=tuple(_groups(layout, cells)),
    )


def _concurrency(layout: _Layout, cells: Cells, tokens: int, length: int) -> Fraction:
    """Requests of that length that all pools hold at the same time."""
    pages = Fraction(tokens // layout.page, -(-length // layout.page))
    held = [pages] if not layout.charged else [pages, Fraction(layout.slots)]
    if cells.sliding:
        each = -(-min(length, cells.window) // layout.page) + 1
        held.append(Fraction(layout.sliding_tokens(tokens) // layout.page, each))
    return min(held)


def _groups(layout: _Layout, cells: Cells) -> list[CacheGroup]:
    free = LayerGroup(kind="State", block_tokens=layout.page)
    parts = (
        ("Full", cells.full_layers, cells.full * layout.page, LayerGroup(kind="Full", block_tokens=layout.page)),
        ("Sliding", cells.sliding_layers, cells.sliding * layout.page, free),
        ("State", cells.state_layers, cells.state, free),
    )
    return [CacheGroup(kind, layers, page, cost) for kind, layers, page, cost in parts if layers]
