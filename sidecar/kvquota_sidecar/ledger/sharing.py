"""Which chunks the live prompts of one tenant share, so that a block is paid once: by the oldest that holds it.

Decides how many leading chunks of a prompt older ones pay for. Pure.

A chain has one hash for each chunk of a prompt, over all up to its end; so equal hashes mean equal beginnings, and
prompts share a beginning or nothing. The prompts form a tree of runs; a run is the longest piece that the same prompts
hold:

    A: s s s s x x            s s [A B C] ──┬── s s [A B] ──┬── x x [A]     A pays for 6 chunks,
    B: s s s s y                            │               └── y   [B]     B for 1, it shares 4,
    C: s s z                                └── z   [C]                     C for 1, it shares 2

Invariants (`check_integrity` verifies 1 and 2):

1. A run is held by at least one live prompt, in order of arrival; the first of them pays.
2. Whoever holds a run holds all before it. So what older ones pay for is a beginning, and who pays for a run pays for
   all behind it that it holds.
3. The memory is linear in the distinct chunks of the live prompts: nothing is left of one that was removed.
4. A call takes time linear in the chunks and runs of the prompts it names, and in those that hold the same runs.

It does not know tokens or blocks, nor that hashes may meet by chance: with 64 bits they do not.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Hashable, Iterator, Mapping
from typing import Generic, TypeVar

from kvquota_sidecar.ledger.asking import LedgerError

K = TypeVar("K", bound=Hashable)


class Prefixes(Generic[K]):
    """One tenant's live prompts, each under a key of its own."""

    __slots__ = ("_last", "_root")

    def __init__(self) -> None:
        self._root: _Run[K] = _Run((), 0, None)
        self._last: dict[K, _Run[K]] = {}  # the run with which a prompt ends

    def __len__(self) -> int:
        return len(self._last)

    def add(self, key: K, chain: tuple[int, ...]) -> int:
        """Take in a prompt as the youngest; how many of its leading chunks older ones hold.

        Raises LedgerError where the key is there already.
        """
        if key in self._last:
            raise LedgerError(f"the prompt {key!r} is counted already")
        run, shared = self._root, 0
        while shared < len(chain) and (following := run.next.get(chain[shared])) is not None:
            run = following.cut(_equal(following.chunks, chain, shared))
            run.holders[key] = None
            shared = run.end
        if shared < len(chain):
            run = run.append(chain[shared:])
            run.holders[key] = None
        self._last[key] = run
        return shared

    def remove(self, key: K) -> Mapping[K, int]:
        """Take a prompt out; the new number of leading chunks that older ones hold, for those whose number fell.

        Raises LedgerError where the key is not there.
        """
        fallen = self.fallen({key})
        for run in self._path(key):
            del run.holders[key]
            if not run.holders and run.before is not None:
                del run.before.next[run.chunks[0]]
        del self._last[key]
        return fallen

    def leading(self, key: K, gone: Container[K] = ()) -> int:
        """How many leading chunks of a prompt older ones hold, when those of `gone` are no longer there."""
        for run in self._path(key):
            if run.payer(gone) != key:
                return run.end
        return 0

    def fallen(self, keys: Collection[K], gone: Container[K] = ()) -> Mapping[K, int]:
        """What `remove` would say of all `keys` together, when `gone` had been removed before. Changes nothing."""
        fallen: dict[K, int] = {}
        for key in keys:
            for run in self._path(key):
                if run.payer(gone) not in keys:
                    break
                heir = run.payer(gone, keys)
                if heir is not None:
                    fallen[heir] = min(run.start, fallen.get(heir, run.start))
        return fallen

    def check_integrity(self) -> None:
        """Raise LedgerError where a run is not what its neighbours say."""
        for key in self._last:
            path = tuple(self._path(key))
            if not all(key in run.holders for run in path):
                raise LedgerError(f"the prompt {key!r} does not hold all before its end")
        for run in _below(self._root):
            first = run.chunks[0]
            if (
                not run.holders
                or run.before is None
                or run.before.next[first] is not run
                or run.before.end != run.start
            ):
                raise LedgerError(f"the run of {len(run.chunks)} chunks from {run.start} does not hang in the tree")

    def _path(self, key: K) -> Iterator[_Run[K]]:
        """The runs of a prompt, from its end to its beginning."""
        if key not in self._last:
            raise LedgerError(f"the prompt {key!r} is not counted")
        run = self._last[key]
        while run.before is not None:
            yield run
            run = run.before


class _Run(Generic[K]):
    """`chunks` from number `start` on, held by `holders` in order of arrival. `before` is None for the root alone."""

    __slots__ = ("before", "chunks", "holders", "next", "start")

    def __init__(self, chunks: tuple[int, ...], start: int, before: _Run[K] | None) -> None:
        self.chunks = chunks
        self.start = start
        self.before = before
        self.holders: dict[K, None] = {}
        self.next: dict[int, _Run[K]] = {}

    @property
    def end(self) -> int:
        return self.start + len(self.chunks)

    def payer(self, *gone: Container[K]) -> K | None:
        """The oldest holder beside those of `gone`; None where nobody is left."""
        for each in self.holders:
            if not any(each in some for some in gone):
                return each
        return None

    def append(self, chunks: tuple[int, ...]) -> _Run[K]:
        """A new run behind this one, held by nobody yet."""
        run = self.next[chunks[0]] = _Run(chunks, self.end, self)
        return run

    def cut(self, length: int) -> _Run[K]:
        """The run of the first `length` chunks; this one, from now on, is what follows it. Itself where it is all."""
        if length == len(self.chunks) or self.before is None:
            return self
        front = self.before.append(self.chunks[:length])
        front.holders = dict(self.holders)
        self.chunks, self.start, self.before = self.chunks[length:], front.end, front
        front.next[self.chunks[0]] = self
        return front


def _equal(run: tuple[int, ...], chain: tuple[int, ...], start: int) -> int:
    """How many chunks of `run` the chain has from `start` on, the first of which it has; by halving, as an equal hash
    says that all before are equal."""
    least, most = 1, min(len(run), len(chain) - start)
    while least < most:
        middle = (least + most + 1) // 2
        if run[middle - 1] == chain[start + middle - 1]:
            least = middle
        else:
            most = middle - 1
    return least


def _below(run: _Run[K]) -> Iterator[_Run[K]]:
    left = list(run.next.values())
    while left:
        yield (each := left.pop())
        left.extend(each.next.values())
