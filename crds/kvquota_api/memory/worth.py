"""How many tokens blocks are worth, and how many blocks tokens take.

Decides the two faces of an amount of KV cache: what is accounted (blocks) and what people read (tokens). Pure.

Invariants:

1. Where every layer keeps every token, tokens are blocks times the tokens of a block.
2. In other models a request takes blocks of several groups: blocks are worth the tokens of the longest requests that
   fill them.
3. Tokens are rounded up to whole blocks: so many blocks hold one request of that length; where it is longer than the
   engine allows, requests of the longest length and one of the rest.

It does not know whose blocks they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.memory.blocks import LayerGroup, blocks_for


@dataclass(frozen=True, slots=True)
class Worth:
    """`groups`: of the plan, one at least; `max_model_len`: tokens of the longest request, at least 1. `rate`: so many
    tokens are worth so many blocks."""

    groups: tuple[LayerGroup, ...]
    max_model_len: Tokens
    rate: tuple[int, int] = field(init=False, repr=False, compare=False)  # computed once: every answer tells of amounts

    def __post_init__(self) -> None:
        whole = self._keeps_every_token
        rate = (self.groups[0].block_tokens, 1) if whole else (self.max_model_len, max(1, self._of_longest))
        object.__setattr__(self, "rate", rate)

    def blocks(self, tokens: Tokens) -> Blocks:
        """Blocks that hold `tokens` of context."""
        if self._keeps_every_token:
            return blocks_for(self.groups, tokens)
        longest, rest = divmod(tokens, self.max_model_len)
        return Blocks(longest * self._of_longest + blocks_for(self.groups, Tokens(rest)))

    def tokens(self, blocks: int) -> Tokens:
        """Tokens of context that `blocks` are worth."""
        of_tokens, of_blocks = self.rate
        return Tokens(blocks * of_tokens // of_blocks)

    @property
    def _keeps_every_token(self) -> bool:
        return len(self.groups) == 1 and self.groups[0].kind == "Full"

    @property
    def _of_longest(self) -> Blocks:
        return blocks_for(self.groups, self.max_model_len)
