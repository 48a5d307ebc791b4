"""What a request of several prompts and copies costs in blocks.

Decides the blocks of one request. Pure.

Invariants:

1. The cost grows with every prompt, with every output and with every copy, never falls.
2. Copies share the whole blocks of their prompt and nothing else: the prompt counts once, each output for itself, and
   the block in which a prompt ends is each copy's own, as an engine writes into it.

It does not know which requests share a prefix: every request pays for its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.memory.blocks import LayerGroup, blocks_for


def prompt_cost(groups: Sequence[LayerGroup], prompt: Tokens, output: Tokens, copies: int) -> Blocks:
    """Blocks of one prompt of `prompt` tokens with `copies` outputs of `output` tokens each."""
    alone = blocks_for(groups, Tokens(prompt + output))
    return Blocks(alone + (copies - 1) * (alone - _shared(groups, prompt)))


def _shared(groups: Sequence[LayerGroup], prompt: Tokens) -> int:
    """Whole blocks of the prompt that all copies use; a window moves on and a state is each sequence's own."""
    return sum(prompt // group.block_tokens for group in groups if group.kind == "Full")
