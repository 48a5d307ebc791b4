"""A model of an engine for tests of the books: it knows the real tokens, holds real blocks by name, and frees late.

Requests of one tenant share the blocks of a common beginning, as with a prefix cache and a salt for each tenant; one
that is cold came too early to find them. What is admitted is taken up in order of arrival, in chunks, as far as there
are blocks; it never preempts: what finds no block stands still.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

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

    @property
    def size(self) -> int:
        return len(self.chunks) * CHUNK_BYTES + self.tail

    @property
    def tokens(self) -> int:
        """As the engine counts them."""
        return sum(CHUNK_TOKENS[each] for each in self.chunks) + -(-self.tail // ESTIMATED_BYTES) or 1

    @property
    def estimate(self) -> int:
        """As one counts who has only the bytes."""
        return max(1, -(-self.size // ESTIMATED_BYTES))

    @property
    def most(self) -> int:
        return max(1, -(-self.size // DENSEST_BYTES))

    @property
    def chain(self) -> tuple[int, ...]:
        return tuple(hash((self.chunks[:end], end)) for end in range(1, len(self.chunks) + 1))

    @property
    def misjudged(self) -> int:
        """Tokens by which the estimate is off, over all parts of the text."""
        usual = CHUNK_BYTES // ESTIMATED_BYTES
        return sum(abs(CHUNK_TOKENS[each] - usual) for each in self.chunks)


@dataclass(eq=False)
class Running:
    """One request in the engine. `limit`: of each output. `cold`: it shares nothing."""

    ticket: int
    name: str
    text: Text
    copies: int
    limit: int
    cold: bool = False
    taken: int = 0  # tokens of the prompt that were computed
    produced: int = 0  # tokens of each output
    held: frozenset[object] = field(default_factory=frozenset)

    @property
    def prefilled(self) -> bool:
        return self.taken >= self.text.tokens

    def needs(self, taken: int, produced: int) -> frozenset[object]:
        """The blocks of so many tokens of the prompt and of each output, by name: equal names are one block."""
        whole = [] if self.cold else [(self.name, *each) for each in _whole_blocks(self.text.chunks, taken)]
        own = [(self.ticket, "prompt", number) for number in range(len(whole), taken // BLOCK)]
        copies = self.copies if taken >= self.text.tokens else 1
        first, last = taken // BLOCK, blocks(taken + produced)
        outputs = [(self.ticket, copy, number) for copy in range(copies) for number in range(first, last)]
        return frozenset((*whole, *own, *outputs))


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
    """`usable`: blocks. `freeing`: (when, blocks) that it will have freed. `started`: as it says."""

    usable: int
    running: dict[int, Running] = field(default_factory=dict)
    freeing: list[tuple[float, int]] = field(default_factory=list)
    started: float = 1.0

    def submit(self, request: Running) -> None:
        self.running[request.ticket] = request

    def used(self, now: float) -> int:
        self.freeing = [(at, count) for at, count in self.freeing if at > now]
        return len(self._live()) + sum(count for _, count in self.freeing)

    def holds(self, name: str) -> int:
        """Distinct blocks of what one tenant runs."""
        return len(frozenset[object]().union(*(each.held for each in self.running.values() if each.name == name)))

    def waiting(self) -> int:
        """Requests of which nothing was computed yet."""
        return sum(not each.held for each in self.running.values())

    def prefill(self, tokens: int, now: float) -> None:
        """Compute up to so many tokens of prompts, in order of arrival, as far as there are blocks."""
        for each in self.running.values():
            step = min(tokens, each.text.tokens - each.taken)
            if step > 0:
                if not self._take(each, each.taken + step, 0, now):
                    return
                tokens -= step

    def produce(self, request: Running, tokens: int, now: float) -> None:
        """Up to so many tokens of each output of a request, as long as there are blocks."""
        wanted = min(request.limit, request.produced + tokens)
        if request.prefilled and wanted > request.produced:
            self._take(request, request.taken, wanted, now)

    def drop(self, ticket: int, at: float) -> None:
        """A request is over; what no other holds is free at `at`."""
        gone = self.running.pop(ticket, None)
        if gone is not None:
            self.freeing.append((at, len(gone.held - self._live())))

    def restart(self) -> None:
        self.started += 1
        self.running.clear()
        self.freeing.clear()

    def _take(self, request: Running, taken: int, produced: int, now: float) -> bool:
        needed = request.needs(taken, produced)
        more = len(needed - request.held - self._live())
        if self.used(now) + more > self.usable:
            return False
        request.taken, request.produced, request.held = taken, produced, needed
        return True

    def _live(self) -> frozenset[object]:
        return frozenset[object]().union(*(each.held for each in self.running.values()))
