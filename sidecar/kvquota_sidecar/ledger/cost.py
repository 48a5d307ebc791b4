"""What requests cost in blocks of one engine.

Decides the blocks of one prompt with its outputs, and of a batch that makes no output. Pure.

Invariants:

1. The cost grows with every prompt, with every output and with every copy, never falls.
2. Copies share the whole blocks of their prompt and nothing else: the prompt counts once, each output for itself, and
   the block in which a prompt ends is each copy's own, as an engine writes into it.
3. What is shared with another request are whole blocks of the prompt's beginning, and only where every layer keeps
   every token: a window moves on, and a state is each sequence's own.
4. Prompts without output are done batch by batch: at most one batch of the engine and one prompt are held at a time,
   and each prompt of the batch has a block of its own that it does not fill.

It does not know which requests share a beginning (`sharing`).
"""

from __future__ import annotations

from collections.abc import Sequence

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.memory.blocks import LayerGroup, blocks_for


class Tariff:
    """The blocks that tokens take. `shares`: whether a beginning that requests have in common is held once.
    `widest`: tokens of the largest block."""

    __slots__ = ("_batch", "_batch_tokens", "_block_tokens", "_groups", "_unfilled", "shares", "widest")

    def __init__(
        self, groups: tuple[LayerGroup, ...], batch_tokens: int | None = None, *, shares_prefixes: bool = False
    ) -> None:
        """`groups`: of the plan, one at least. `batch_tokens`: of one step of the engine; None: nobody said."""
        full = all(group.kind == "Full" for group in groups)
        self._groups = groups
        self._block_tokens = groups[0].block_tokens if full and len(groups) == 1 else 0  # 0: there is no one size
        self._batch = None if batch_tokens is None else blocks_for(groups, Tokens(batch_tokens))
        self._batch_tokens = batch_tokens or 0
        self._unfilled = blocks_for(groups, Tokens(1))
        self.shares = shares_prefixes and full
        self.widest = max([group.block_tokens for group in groups])

    def prompt(self, tokens: int, output: int, copies: int, shared: int = 0) -> int:
        """Blocks of a prompt with `copies` outputs of `output` tokens each, whose first `shared` tokens others hold."""
        block = self._block_tokens
        if not block:
            return self._of_groups(tokens, output, copies, shared)
        alone = -(-(tokens + output) // block)
        if copies > 1:
            alone += (copies - 1) * (alone - tokens // block)
        return alone - shared // block if shared else alone

    def batch(self, prompts: Sequence[int]) -> int:
        """Blocks of prompts, at least one, that make no output."""
        each = [self.prompt(tokens, 0, 1) for tokens in prompts]
        if self._batch is None:
            return sum(each)
        together = min(len(each), self._batch_tokens // max(1, min(prompts)) + 1)
        return min(sum(each), self._batch + together * self._unfilled + max(each))

    def _of_groups(self, tokens: int, output: int, copies: int, shared: int) -> int:
        alone = blocks_for(self._groups, Tokens(tokens + output))
        more = (copies - 1) * (alone - self._whole(tokens)) if copies > 1 else 0
        return alone + more - (self._whole(shared) if shared else 0)

    def _whole(self, tokens: int) -> Blocks:
        """Whole blocks of the first `tokens` tokens that several sequences can use."""
        return Blocks(sum(tokens // group.block_tokens for group in self._groups if group.kind == "Full"))
