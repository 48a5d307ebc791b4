"""How many tokens a block holds before layers with other pages are considered.

Decides the block of attention and of recurrent state. Pure.

Invariants:

1. A block size that was given is used, except where vLLM overrides it: latents on the CPU, and beside recurrent state.
2. Beside recurrent state a page of attention is never smaller than the state: the block grows, the state is padded.

Sources: vllm/platforms/interface.py `update_block_size_for_backend`, `_align_hybrid_block_size`, vllm/platforms/cpu.py
of 0.32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.models.layers import Attention, Latent, ModelShape, StateCache
from kvquota_api.memory.vllm.backends import DEFAULT_BLOCK, Kernel, preferred_block
from kvquota_api.memory.vllm.heads import local_heads
from kvquota_api.memory.vllm.resolving import CPU_RECORD_BLOCK, Settings, usual_block
from kvquota_api.memory.vllm.states import StateTypes, state_bytes


@dataclass(frozen=True, slots=True)
class Blocks:
    """Tokens of a block: `attention` of layers that keep tokens, `state` of recurrent ones; `state_page`: their page in
    bytes where it is made as large as that of attention, None where it is their own."""

    attention: int
    state: int
    state_page: int | None = None


def blocks_of(model: ModelShape, settings: Settings, kernels: Sequence[Kernel], types: StateTypes) -> Blocks:
    """The blocks of a stage with those kernels; EngineUnknownError where they do not take what state asks for."""
    block = _first_block(settings, kernels)
    if settings.traits.hybrid and kernels:
        per_token = _attention_bytes_per_token(model, settings, types.tensor)
        block = max(block, _aligned(_state_bytes(model, types), per_token, settings, kernels))
        return Blocks(block, _state_block(settings, block), block * per_token)
    return Blocks(block, _state_block(settings, block))


def _state_block(settings: Settings, block: int) -> int:
    """States are kept at block boundaries for prefix caching, else one for the whole sequence."""
    return block if settings.aligned_states else settings.max_model_len


def _first_block(settings: Settings, kernels: Sequence[Kernel]) -> int:
    """The block size before state layers are looked at."""
    if settings.platform == "cpu":
        return _cpu_block(settings)
    return preferred_block(kernels, DEFAULT_BLOCK) if settings.block is None else settings.block


def _cpu_block(settings: Settings) -> int:
    if settings.traits.records:
        return CPU_RECORD_BLOCK
    if settings.traits.latent:
        return DEFAULT_BLOCK
    return settings.block or usual_block(settings.traits, settings.platform)


def _aligned(state: int, per_token: int, settings: Settings, kernels: Sequence[Kernel]) -> int:
    """The least block whose attention page holds a state (_align_hybrid_block_size)."""
    first = _first_block(settings, kernels)
    grain = max(kernels[0].smallest, first)
    if settings.traits.latent:
        grain = max(grain, settings.rules.latent_grain)
    wanted = grain * -(-state // (grain * per_token))
    common = math.lcm(*(kernel.smallest for kernel in kernels))
    block = common * -(-wanted // common)
    rejecting = [kernel.name for kernel in kernels if block > first and not kernel.takes(block)]
    if rejecting:
        raise EngineUnknownError(
            f"a block of {block} tokens, as large as the recurrent state, is not taken by {', '.join(rejecting)}: "
            f"vLLM does not serve this model on {settings.platform}"
        )
    return block


def _state_bytes(model: ModelShape, types: StateTypes) -> int:
    """The largest state of any layer."""
    return max(state_bytes(cache, types) for layer in model.layers for cache in layer if isinstance(cache, StateCache))


def _attention_bytes_per_token(model: ModelShape, settings: Settings, tensor: int) -> int:
    """Bytes of a token in one attention layer, K as wide as V, as the alignment counts them."""
    for cache in (cache for layer in model.layers for cache in layer):
        if isinstance(cache, Latent):
            return (cache.rank + cache.rope) * settings.kv.element_bytes
        if isinstance(cache, Attention):
            return local_heads(cache.kv_heads, tensor) * settings.kv.head_bytes(cache.key_dim, cache.key_dim)
    raise EngineUnknownError(f"{model.architecture}: recurrent state beside compressed records is not known")
