"""One request in the books, from admission to release.

Decides what it is charged and what it has filled. Pure.

            admitted                 release
    ask ─────────────► LIVE ───────────────────────► gone
                        │ Ending       release
                        ├────────► ENDED ──────────► gone      charge gone, sequences still counted
                        │ engine restarted   release
                        └────────► DEAD ───────────► gone      nothing left of it in the engine

Invariants:

1. While LIVE the charge is the cost of the larger of what is promised and what was seen; otherwise it is 0.
2. What was seen never shrinks, unless the engine itself says so (`correct`).

It does not know its tenant's other requests: that is `accounts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.memory.blocks import LayerGroup
from kvquota_sidecar.ledger.cost import prompt_cost

_NO_TOKENS: Final = Tokens(0)
_NO_BLOCKS: Final = Blocks(0)


class State(Enum):
    LIVE = "live"
    ENDED = "ended"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens of a prompt, and the most that each of its outputs may have."""

    tokens: Tokens
    limit: Tokens


@dataclass(slots=True)
class Entry:
    """`promise` and `produced` are tokens of one sequence; `produced` is 0 until the first sign of an output.

    `hard` is its tenant's hard when it was admitted, in blocks; `admitted_at` is monotonic seconds. `started`: the
    engine must have taken it up, though nothing of its output was seen.
    """

    ticket: int
    tenant: str
    groups: tuple[LayerGroup, ...]
    prompts: tuple[Prompt, ...]
    copies: int
    promise: Tokens
    hard: Blocks
    admitted_at: float
    produced: Tokens = _NO_TOKENS
    charge: Blocks = _NO_BLOCKS
    state: State = State.LIVE
    started: bool = False
    passed_in_shadow: bool = False

    @property
    def sequences(self) -> int:
        return len(self.prompts) * self.copies

    def see(self, produced: Tokens) -> bool:
        """`produced` tokens were seen over all sequences; whether that passes the promise."""
        self.produced = max(self.produced, self._each(produced))
        return self.produced > self.promise

    def correct(self, prompt: Tokens, produced: Tokens) -> None:
        """The engine's own count: `prompt` tokens over all prompts, each in proportion to its estimate."""
        estimated = sum(each.tokens for each in self.prompts)
        self.prompts = tuple(
            Prompt(Tokens(-(-each.tokens * prompt // estimated)), each.limit) if estimated else each
            for each in self.prompts
        )
        self.produced = self._each(produced)

    def cost(self) -> Blocks:
        """Blocks of what is promised, or seen where that is more."""
        return self._cost(self.promise)

    def cost_at_limits(self) -> Blocks:
        """Blocks of the request when every sequence has become as long as it may."""
        return self._cost(max(each.limit for each in self.prompts))

    def filled(self) -> Blocks:
        """Blocks in the engine: by the output that was seen; at most its charge where it has started and shows none."""
        return self.seen() or self.unseen()

    def seen(self) -> Blocks:
        """Blocks that are filled by the output that was seen; 0 where none was."""
        return self._cost(_NO_TOKENS) if self.produced else _NO_BLOCKS

    def unseen(self) -> Blocks:
        """Blocks that may be filled although no output was seen, since the engine has taken the request up."""
        return self.charge if self.started and not self.produced else _NO_BLOCKS

    def _cost(self, promise: Tokens) -> Blocks:
        return Blocks(sum(self._prompt_cost(each, promise) for each in self.prompts))

    def _prompt_cost(self, prompt: Prompt, promise: Tokens) -> Blocks:
        output = Tokens(max(min(promise, prompt.limit), self.produced))
        return prompt_cost(self.groups, prompt.tokens, output, self.copies)

    def _each(self, produced: Tokens) -> Tokens:
        return Tokens(-(-produced // self.sequences))
