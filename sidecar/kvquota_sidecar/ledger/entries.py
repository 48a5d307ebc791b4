"""One request in the books, from the first ask to its release.

Decides what it is charged and what it has filled. Pure.

             guaranteed,      room      missed, or its client has gone
             no room yet ┌───────────► LIVE
    ask ──► WAITING ─────┤
     │                   └───────────► gone
     │ admitted                 release
     └─────────────► LIVE ───────────────────────► gone
                      │ Ending       release
                      ├────────► ENDED ──────────► gone      charge gone, sequences still counted
                      │ engine restarted   release
                      └────────► DEAD ───────────► gone      nothing left of it in the engine

Invariants:

1. While WAITING or LIVE the charge is the cost of the larger of what is promised and what was seen, without the blocks
   that older requests of its tenant pay for; otherwise it is 0.
2. What was seen never shrinks, unless the engine itself says so (`correct`).
3. The ceiling is what it can hold at most, as far as the bounds of its prompts are true ones: they are as long as they
   can be, and what older ones do not hold of them has one token for each byte, so that the rest is as sparse as the
   whole allows [a shared beginning of blanks, an end of dense text, and a thirtieth of it was charged].

It does not know its tenant's other requests: that is `accounts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from kvquota_api.amounts import UNLIMITED, Blocks, Tokens
from kvquota_sidecar.admission.case import Known
from kvquota_sidecar.estimate.chain import CHUNK_BYTES
from kvquota_sidecar.ledger.asking import Kind
from kvquota_sidecar.ledger.cost import Tariff
from kvquota_sidecar.records import MutableLeaf

_NO_TOKENS: Final = Tokens(0)
_NO_BLOCKS: Final = Blocks(0)


class State(Enum):
    WAITING = "waiting"
    LIVE = "live"
    ENDED = "ended"
    DEAD = "dead"


class Prompt(MutableLeaf):
    """`tokens` of a prompt, at most `most`, and the most that each of its outputs may have.

    `chain` and `size` as in AskedPrompt. `leading`: chunks of the chain that older prompts hold. `found`: the most of
    its beginning that the engine can have found in its cache, in tokens.
    """

    tokens: Tokens
    most: Tokens
    limit: Tokens
    chain: tuple[int, ...] = ()
    size: int = 0
    leading: int = 0
    found: int = UNLIMITED

    def shared(self, tokens: int) -> int:
        """Tokens of its beginning that older prompts hold, where there is one and it has `tokens` in all."""
        return min(self.found, tokens * min(self.size, self.leading * CHUNK_BYTES) // self.size)

    def surely_shared(self, block_tokens: int) -> int:
        """Tokens of its beginning that older prompts hold at least, if it is as long as it can be."""
        shared = min(self.size, self.leading * CHUNK_BYTES)
        least = min(shared, self.most - (self.size - shared), self.found)
        if self.most > self.tokens:
            least -= block_tokens  # nobody knows where in a block that ends
        return max(0, least)


class Entry(MutableLeaf):
    """`limit`, `promise` and `produced` are tokens of one sequence; `produced` is 0 until the first sign of an output.

    `hard` is its tenant's hard when it was admitted, in blocks; `admitted_at` and `deadline` are monotonic seconds, the
    latter of its waiting. `context`: tokens that a sequence of its may have; `given`: the limit that comes with
    it, `told`: that one where it was not its client that set it, but this program.
    `doubt`: blocks of its ceiling beyond its charge. `estimated`: its prompts are not known exactly; `guessed`: they
    are taken for so many tokens, as nobody counted them in time. `rank`: place of the rank that runs it. `shares`:
    whether its prompts are compared with the tenant's others. `started`: the engine must have taken it up, though
    nothing of its output was seen. `sent`: its client has seen the first byte. `looked_up`: tokens of its prompts, and
    how many of them the engine found in its prefix cache; None: it did not say.
    """

    ticket: int
    tenant: str
    kind: Kind
    tariff: Tariff
    prompts: tuple[Prompt, ...]
    copies: int
    sequences: int
    limit: Tokens
    promise: Tokens
    hard: Blocks
    admitted_at: float
    rank: int
    context: Tokens
    given: Tokens | None
    estimated: bool
    produced: Tokens = _NO_TOKENS
    charge: Blocks = _NO_BLOCKS
    doubt: int = 0
    deadline: float = 0.0
    state: State = State.LIVE
    shares: bool = False
    started: bool = False
    sent: bool = False
    told: Tokens | None = None
    looked_up: tuple[Tokens, Tokens] | None = None
    passed_in_shadow: bool = False
    evicted_in_shadow: bool = False
    guessed: bool = False

    @property
    def known(self) -> Known:
        """How well its blocks are known, as a refusal says it."""
        return "About" if self.estimated or self.guessed else "Exactly"

    def see(self, produced: Tokens) -> bool:
        """`produced` tokens were seen over all sequences; whether that passes the promise."""
        self.produced = max(self.produced, self._each(produced))
        return self.produced > self.promise

    def correct(self, prompt: Tokens, produced: Tokens) -> None:
        """The engine's own count: `prompt` tokens over all prompts, each in proportion to its estimate."""
        estimated = sum([each.tokens for each in self.prompts]) if len(self.prompts) > 1 else self.prompts[0].tokens
        if estimated:
            for each in self.prompts:
                each.tokens = each.most = Tokens(-(-each.tokens * prompt // estimated))
        self.estimated = self.guessed = False
        self.produced = self._each(produced)

    def count(self, tokens: Sequence[Tokens], *, guessed: bool) -> None:
        """The tokens of each of its prompts, as they were counted, or `guessed`. What its outputs may have follows from
        them."""
        for each, counted in zip(self.prompts, tokens, strict=True):
            each.tokens = each.most = counted
            each.limit = limit_of(self.given, self.context, counted)
        self.estimated, self.guessed = False, guessed

    def find(self, cached: int) -> None:
        """The engine found `cached` tokens of the prompts in its cache: what was not found is held once more."""
        for each in self.prompts:
            if each.leading:
                each.found = min(each.found, cached)
                cached -= each.shared(each.tokens)

    def cost(self) -> Blocks:
        """Blocks of what is promised, or seen where that is more, without what older prompts hold."""
        return self.cost_of(self.promise)

    def cost_of(self, promise: Tokens) -> Blocks:
        """Blocks at outputs of `promise` tokens, as far as the limits allow them, or as seen where that is more."""
        if self.kind == "Pool":
            return Blocks(self.tariff.batch([each.tokens for each in self.prompts]))
        produced, tariff, blocks = self.produced, self.tariff, 0
        for each in self.prompts:
            output = promise if promise < each.limit else each.limit
            shared = each.shared(each.tokens) if each.leading else 0
            blocks += tariff.prompt(each.tokens, output if output > produced else produced, self.copies, shared)
        return Blocks(blocks)

    def ceiling(self) -> Blocks:
        """Blocks that it can hold at most, with the outputs that are promised, or seen where that is more."""
        if self.kind == "Pool":
            return Blocks(self.tariff.batch([each.most for each in self.prompts]))
        produced, tariff, blocks = self.produced, self.tariff, 0
        for each in self.prompts:
            output = max(produced, min(self.promise, limit_of(each.limit, self.context, each.most)))
            shared = each.surely_shared(tariff.widest) if each.leading else 0
            blocks += tariff.prompt(each.most, output, self.copies, shared)
        return Blocks(blocks)

    def filled(self) -> Blocks:
        """Blocks in the engine: by the output that was seen; at most its charge where it has started and shows none."""
        return self.cost_of(_NO_TOKENS) if self.produced else self.unseen()

    def seen(self) -> Blocks:
        """Blocks that are filled by the output that was seen; 0 where none was."""
        return self.cost_of(_NO_TOKENS) if self.produced else _NO_BLOCKS

    def unseen(self) -> Blocks:
        """Blocks that may be filled although no output was seen, since the engine has taken the request up."""
        return self.charge if self.started and not self.produced else _NO_BLOCKS

    def _each(self, produced: Tokens) -> Tokens:
        return produced if self.sequences == 1 else Tokens(-(-produced // self.sequences))


def limit_of(given: Tokens | None, context: Tokens, prompt: Tokens) -> Tokens:
    """Tokens that the output of a prompt of `prompt` tokens may have: what its client set (`given`), never more than
    the context leaves."""
    left = context - prompt if context > prompt else 1
    return given if given is not None and given < left else Tokens(left)


def doubt_of(entry: Entry) -> int:
    """Blocks of its ceiling beyond its charge."""
    if not entry.estimated and not entry.shares:
        return 0
    return max(0, entry.ceiling() - entry.charge)
