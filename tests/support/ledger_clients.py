"""Requests as their clients mean them, and what is known of each that was not released."""

from __future__ import annotations

from dataclasses import dataclass

from kvquota_api.amounts import Tokens
from kvquota_sidecar.ledger.asking import Ask, AskedPrompt, Growth, Kind
from ledger_engine import BLOCK, Text, blocks

Told = tuple[tuple[int, int], ...]  # of each text: tokens and upper bound that the books know


@dataclass(frozen=True)
class Wanted:
    """One request as its client means it. `limit`: of each output, None: not said. `pools`: it makes no output."""

    name: str
    texts: tuple[Text, ...]
    copies: int = 1
    limit: int | None = None
    seen: bool = True
    cold: bool = False
    pools: bool = False

    def ask(self, told: Told, *, final: bool = False) -> Ask:
        prompts = tuple(
            AskedPrompt(Tokens(tokens), Tokens(most), text.chain, text.size)
            for text, (tokens, most) in zip(self.texts, told, strict=True)
        )
        limit = None if self.limit is None else Tokens(self.limit)
        growth: Growth = "Seen" if self.seen else "Unseen"
        kind: Kind = "Pool" if self.pools else "Generate"
        return Ask(f"inference/{self.name}", prompts, self.copies, limit, growth, kind, final)

    @property
    def sequences(self) -> int:
        return len(self.texts) * (1 if self.pools else self.copies)

    @property
    def real(self) -> Told:
        return tuple((each.tokens, each.tokens) for each in self.texts)

    @property
    def guess(self) -> Told:
        return tuple((each.estimate, each.most) for each in self.texts)

    @property
    def worst(self) -> Told:
        return tuple((each.most, each.most) for each in self.texts)


def is_exact(told: Told) -> bool:
    return all(tokens == most for tokens, most in told)


@dataclass(eq=False)
class Client:
    """A request that was not released. `hard`: the largest that was in force since its ask. `rank`: by the books.
    `shown`: tokens of each output that the books were told of."""

    wanted: Wanted
    told: Told
    hard: int
    since: float
    rank: int
    shown: int = 0
    settled: bool = False
    unseen: bool = False
    ended: bool = False

    def settle(self) -> None:
        """The books hear the sum of its texts only, and take each to be off by as much as all are."""
        guessed, real = sum(tokens for tokens, _ in self.told), sum(each.tokens for each in self.wanted.texts)
        counted = [-(-tokens * real // guessed) for tokens, _ in self.told]
        self.told, self.settled = tuple((each, each) for each in counted), True

    def least(self, limits: tuple[int, ...], batch: int | None) -> int:
        """Blocks of what the books know, by the words of the rules. Of outputs of several lengths that is the mean.

        `limits`: of the outputs of each text. `batch`: tokens of one step of the engine; None: nobody said.
        """
        if self.wanted.pools:
            each = [blocks(tokens) for tokens, _ in self.told]
            if batch is None:
                return sum(each)
            together = min(len(each), batch // max(1, min(tokens for tokens, _ in self.told)) + 1)
            return min(sum(each), blocks(batch) + together + max(each))
        mean = -(-sum(min(self.shown, limit) for limit in limits) // len(limits))
        return sum(
            tokens // BLOCK + self.wanted.copies * (blocks(tokens + mean) - tokens // BLOCK) for tokens, _ in self.told
        )

    def doubt(self, context: int) -> int:
        """Blocks that its prompts take beyond the estimate at least, if they are as long as they can be.

        Without a limit the output has what the context leaves: then prompt and output together stay what they are. A
        longer prompt may end with its block, which then is no longer each copy's own.
        """
        limit, copies = self.wanted.limit, self.wanted.copies
        if limit is None or self.wanted.pools:
            return 0
        roundings = 1 if copies == 1 else copies + 1
        more = [blocks(min(most, context - limit)) - blocks(tokens) - roundings for tokens, most in self.told]
        return sum(max(0, each) for each in more)

    def error(self, produced: int, *, sharing: bool) -> int:
        """Blocks that the books cannot know of: what the estimate is off, what they were not told, and roundings. Where
        nothing would be told they have reserved all there may be."""
        wanted, error = self.wanted, 0
        untold = blocks(max(0, produced - self.shown)) if wanted.seen and not self.unseen else 0
        for text, (tokens, _) in zip(wanted.texts, self.told, strict=True):
            unknown = abs(text.tokens - tokens) + (text.misjudged if sharing else 0)
            missed = blocks(text.tokens) if wanted.cold and sharing and not self.settled else 0
            error += (blocks(unknown) + untold + 1) * wanted.copies + missed
        return error
