"""A model of an engine for tests of the books: it knows the real tokens, holds real blocks by name, and frees late.

Requests of one tenant share the blocks of a common beginning on their rank, as with a prefix cache and a salt for each
tenant; one that is cold came too early to find them. What is admitted is taken up in order of arrival, in chunks, as
far as its rank has blocks; it never preempts: what finds no block stands still.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

BLOCK = 16  # tokens
CHUNK_TOKENS = (32, 32, 23, 8, 64)  # real tokens of a chunk, by its letter: as estimated, less, little, dense
ESTIMATED_BYTES = 16  # of one token, where every text is taken for usual
DENSEST_BYTES = 8  # of one token in the densest text
CHUNK_BYTES = 512


def blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)


@dataclass(frozen=True)
class Text:
    """A prompt: whole chunks by letter, and a tail that no other prompt has."""

    chunks: tuple[int, ...]
    tail: int  # bytes, less than a chunk

    @cached_property
    def size(self) -> int:
        return len(self.chunks) * CHUNK_BYTES + self.tail

    @cached_property
    def tokens(self) -> int:
        """As the engine counts them."""
        return sum(CHUNK_TOKENS[each] for each in self.chunks) + -(-self.tail // ESTIMATED_BYTES) or 1

    @cached_property
    def estimate(self) -> int:
        """As one counts who has only the bytes."""
        return max(1, -(-self.size // ESTIMATED_BYTES))

    @cached_property
    def most(self) -> int:
        return max(1, -(-self.size // DENSEST_BYTES))

    @cached_property
    def chain(self) -> tuple[int, ...]:
        return tuple(hash((self.chunks[:end], end)) for end in range(1, len(self.chunks) + 1))

    @cached_property
    def misjudged(self) -> int:
        """Tokens by which the estimate is off, over all parts of the text."""
        usual = CHUNK_BYTES // ESTIMATED_BYTES
        return sum(abs(CHUNK_TOKENS[each] - usual) for each in self.chunks)


@dataclass(eq=False)
class Running:
    """One request in the engine. `limits`: of the outputs of each text. `pools`: its texts are done batch by batch, and
    make no output. `cold`: it shares nothing."""

    ticket: int
    name: str
    texts: tuple[Text, ...]
    copies: int
    limits: tuple[int, ...]
    cold: bool = False
    pools: bool = False
    rank: int = 0
    taken: int = 0  # tokens of all its texts, in their order, that were computed
    produced: int = 0  # tokens of each output that has not come to its limit
    held: frozenset[object] = field(default_factory=frozenset)

    @cached_property
    def tokens(self) -> int:
        return sum(each.tokens for each in self.texts)

    @property
    def prefilled(self) -> bool:
        return self.taken >= self.tokens

    @property
    def written(self) -> int:
        """Tokens of all outputs together."""
        return sum(min(self.produced, limit) for limit in self.limits) * self.copies

    def needs(self, taken: int, produced: int, since: int = 0) -> frozenset[object]:
        """The blocks of so many tokens of the texts and of each output, by name: equal names are one block. Without
        the texts that were done when `since` tokens were taken."""
        found: set[object] = set()
        end = 0
        for place, text in enumerate(self.texts):
            start, end = end, end + text.tokens
            if start < taken and end > since:
                found |= self._of(place, min(taken, end) - start, min(produced, self.limits[place]))
        return frozenset(found)

    def ends(self, produced: int) -> list[int]:
        """With which block the outputs of each text end."""
        return [blocks(text.tokens + min(produced, limit)) for text, limit in zip(self.texts, self.limits, strict=True)]

    def _of(self, place: int, taken: int, produced: int) -> set[object]:
        text = self.texts[place]
        beginning = () if self.cold else _whole_blocks(text.chunks, taken)
        found: set[object] = {(self.rank, self.name, *each) for each in beginning}
        found.update((self.ticket, place, number) for number in range(len(beginning), taken // BLOCK))
        outputs = range(taken // BLOCK, blocks(taken + produced))
        for copy in range(self.copies if taken >= text.tokens else 1):
            found.update((self.ticket, place, copy, number) for number in outputs)
        return found


@lru_cache(maxsize=4096)
def _whole_blocks(chunks: tuple[int, ...], taken: int) -> tuple[tuple[object, ...], ...]:
    """Blocks of a beginning that lie in whole chunks, each named by all the text up to its end."""
    found: list[tuple[object, ...]] = []
    end = 0
    for count, letter in enumerate(chunks, start=1):
        end += CHUNK_TOKENS[letter]
        found += [(chunks[:count], number) for number in range(len(found), min(end, taken) // BLOCK)]
    return tuple(found)


@dataclass(eq=False)
class ModelEngine:
    """`usable`: blocks of each of its `ranks`. `batch`: tokens of one step of texts that are pooled. `freeing`: (when,
    blocks, rank) that it will have freed. `started`: as it says."""

    usable: int
    ranks: int = 1
    batch: int = 10**6
    running: dict[int, Running] = field(default_factory=dict)
    freeing: list[tuple[float, int, int]] = field(default_factory=list)
    started: float = 1.0
    _holders: Counter[object] = field(default_factory=Counter)  # of each block
    _held: Counter[int] = field(default_factory=Counter)  # distinct blocks of each rank

    def submit(self, request: Running) -> None:
        self.running[request.ticket] = request

    def used(self, rank: int, now: float) -> int:
        self.freeing = [each for each in self.freeing if each[0] > now]
        return self._held[rank] + sum(count for _, count, place in self.freeing if place == rank)

    def waiting(self, rank: int) -> int:
        """Requests of which nothing was computed yet."""
        return sum(not each.held for each in self.running.values() if each.rank == rank)

    def prefill(self, tokens: int, now: float) -> None:
        """Compute up to so many tokens of texts on each rank, in order of arrival, as far as there are blocks."""
        left = dict.fromkeys(range(self.ranks), tokens)
        for each in self.running.values():
            step = min(left[each.rank], each.tokens - each.taken, self.batch if each.pools else each.tokens)
            if step > 0:
                since = each.taken if each.pools else 0
                done = self._take(each, each.needs(each.taken + step, 0, since), now)
                each.taken += step if done else 0
                left[each.rank] -= step if done else left[each.rank]

    def produce(self, request: Running, tokens: int, now: float) -> None:
        """Up to so many tokens of each output of a request, as long as there are blocks."""
        wanted = min(max(request.limits), request.produced + tokens)
        if not request.prefilled or wanted <= request.produced:
            return
        same = request.ends(wanted) == request.ends(request.produced)
        if same or self._take(request, request.needs(request.taken, wanted), now):
            request.produced = wanted

    def drop(self, ticket: int, at: float) -> None:
        """A request is over; what no other holds is free at `at`."""
        gone = self.running.pop(ticket, None)
        if gone is not None:
            self.freeing.append((at, self._let_go(gone, gone.held), gone.rank))

    def restart(self) -> None:
        self.started += 1
        for each in (self.running, self.freeing, self._holders, self._held):
            each.clear()

    def _take(self, request: Running, needed: frozenset[object], now: float) -> bool:
        more = [each for each in needed - request.held if each not in self._holders]
        if self.used(request.rank, now) + len(more) > self.usable:
            return False
        self._holders.update(needed - request.held)
        self._held[request.rank] += len(more)
        self._let_go(request, request.held - needed)
        request.held = needed
        return True

    def _let_go(self, request: Running, held: frozenset[object]) -> int:
        """How many blocks nobody holds any more."""
        self._holders.subtract(held)
        free = [each for each in held if not self._holders[each]]
        for each in free:
            del self._holders[each]
        self._held[request.rank] -= len(free)
        return len(free)
