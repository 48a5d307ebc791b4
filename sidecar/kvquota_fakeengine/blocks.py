"""The pool of KV blocks: who holds which, which are cached, which is reused next.

Invariants (`check_integrity`):
1. Block 0 is the null block: never free, never held, never named.
2. Every other block is either held (at least one table lists it) or in the free queue, once.
3. A block's references are the number of tables that list it; no table lists a block twice.
4. A name leads to a block that carries it, and no two blocks carry one name.
5. Free blocks without a name are reused before named ones; named ones in the order in which they were given back.

It does not know tokens, time, requests or why somebody wants blocks.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from kvquota_fakeengine.prefix_chain import BlockName

NULL_BLOCK = 0


@dataclass(slots=True)
class _Block:
    references: int = 0
    name: BlockName | None = None


class BlockPool:
    """`blocks` blocks, the null block included. Holders are named by the caller."""

    def __init__(self, blocks: int) -> None:
        if blocks < 2:
            raise ValueError(f"a pool needs the null block and at least one more, not {blocks}")
        self._blocks = [_Block() for _ in range(blocks)]
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, blocks))
        self._named: dict[BlockName, int] = {}
        self._tables: dict[str, list[int]] = {}

    @property
    def usable(self) -> int:
        return len(self._blocks) - 1

    @property
    def free(self) -> int:
        """Blocks that can be taken, those with reusable content included."""
        return len(self._free)

    @property
    def held(self) -> int:
        return self.usable - self.free

    @property
    def cached(self) -> int:
        """Free blocks whose content can still be found by name."""
        return sum(self._blocks[number].name is not None for number in self._free)

    def holders(self) -> frozenset[str]:
        return frozenset(self._tables)

    def table(self, holder: str) -> tuple[int, ...]:
        """The holder's blocks in the order of its tokens; empty for somebody who holds none."""
        return tuple(self._tables.get(holder, ()))

    def known_prefix(self, names: Sequence[BlockName]) -> int:
        """How many of `names`, from the first on, lead to a block."""
        for count, name in enumerate(names):
            if name not in self._named:
                return count
        return len(names)

    def open_table(self, holder: str, *, shared: Sequence[BlockName], fresh: int) -> bool:
        """Give a new holder the blocks named `shared` and `fresh` empty ones; nothing and False for want of room."""
        if holder in self._tables:
            raise ValueError(f"{holder} has a table already")
        hits = [self._named[name] for name in shared]
        idle_hits = sum(self._blocks[number].references == 0 for number in hits)
        if fresh > self.free - idle_hits:
            return False
        for number in hits:
            self._reference(number)
        self._tables[holder] = hits + [self._take() for _ in range(fresh)]
        return True

    def grow(self, holder: str) -> bool:
        """One more empty block at the end of the holder's table; False if the pool has none."""
        if not self._free:
            return False
        self._tables[holder].append(self._take())
        return True

    def publish(self, holder: str, index: int, name: BlockName) -> None:
        """Let others find the holder's block at `index` under `name`; the first block of a name keeps it."""
        number = self._tables[holder][index]
        if name not in self._named and self._blocks[number].name is None:
            self._named[name] = number
            self._blocks[number].name = name

    def close_table(self, holder: str) -> None:
        """Give all blocks back: those without a name are reused first, a prefix from its end."""
        for number in reversed(self._tables.pop(holder)):
            block = self._blocks[number]
            block.references -= 1
            if block.references == 0:
                self._free[number] = None
                self._free.move_to_end(number, last=block.name is not None)

    def _reference(self, number: int) -> None:
        block = self._blocks[number]
        if block.references == 0:
            del self._free[number]
        block.references += 1

    def _take(self) -> int:
        number, _ = self._free.popitem(last=False)
        block = self._blocks[number]
        if block.name is not None:
            del self._named[block.name]
            block.name = None
        block.references = 1
        return number

    def check_integrity(self) -> None:
        """Raise `AssertionError` naming the first invariant that does not hold."""
        null = self._blocks[NULL_BLOCK]
        _require(null == _Block() and NULL_BLOCK not in self._free, "the null block is free, held or named")
        listed = Counter(number for table in self._tables.values() for number in table)
        for number, block in enumerate(self._blocks[1:], start=1):
            _require(block.references == listed[number], f"block {number} miscounts its references")
            _require((block.references == 0) == (number in self._free), f"block {number} is free and held, or neither")
        for holder, table in self._tables.items():
            _require(len(set(table)) == len(table), f"{holder} lists a block twice")
        carried = {block.name: number for number, block in enumerate(self._blocks) if block.name is not None}
        _require(carried == self._named, "names and blocks disagree")
        order = [self._blocks[number].name is not None for number in self._free]
        _require(order == sorted(order), "a cached block would be reused before an empty one")


def _require(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - an assertion that `python -O` keeps
    if not holds:
        raise AssertionError(otherwise)
