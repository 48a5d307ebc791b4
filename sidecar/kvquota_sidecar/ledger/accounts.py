"""One tenant in the books: its share, its requests in order of admission, and what is protected of them.

Decides the protected prefix, who pays for blocks that its requests share, and who has to go when its own growth passes
hard. Pure.

Invariants:

1. `charged` is the sum of the charges of its live and its waiting requests; `sequences` that of all that are not
   released, `doubt` that of the doubts.
2. Protected is the longest prefix of the live ones, in order of admission, whose charges sum to at most soft; the rest
   is over-soft, each request as a whole.
3. A block that several of its requests hold is paid by the one that came first; when that one goes, by the next. Ranks
   have caches of their own, so only what one rank runs is compared. With cacheIsolation Shared tenants use each other's
   blocks, and each one that holds a block pays for it: what is compared here is always of one tenant.

It does not know the other tenants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.memory.worth import Worth
from kvquota_api.pod_config import Enforcement, TenantShare
from kvquota_sidecar.admission.thresholds import Lines, context_limit
from kvquota_sidecar.estimate.outputs import Outputs
from kvquota_sidecar.ledger.asking import Cause
from kvquota_sidecar.ledger.drain import Drain
from kvquota_sidecar.ledger.entries import Entry, Prompt
from kvquota_sidecar.ledger.sharing import Prefixes
from kvquota_sidecar.ledger.tally import Tally
from kvquota_sidecar.refusals.headers import allowance_of
from kvquota_sidecar.refusals.room import Allowance

# Of hard, in charges and doubts: from here on what was admitted by its estimate is counted while it runs. Below it no
# tokenizer is asked, so a tenant far from its border costs none; and when it nears the border what is open is not more
# than half, so half of hard is there at once for what is known.
COUNTED_FROM: Final = 0.5

Key = tuple[int, int]  # of a prompt: the ticket of its request, and its place in that


@dataclass(frozen=True, slots=True)
class _Keys:
    """The prompts of `tickets`."""

    tickets: frozenset[int]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, tuple) and key[0] in self.tickets


class Account:
    """`share` is None for a tenant that the config no longer names. `soft`: in force, in blocks. `context`: tokens that
    a sequence may have. `shed_percent`: of pressure, from where on its over-soft work is refused. `doubt`: blocks that
    its requests may hold beyond their charges, as far as their prompts are not known.

    `pressed`: growth has passed hard, and no request has ended by itself since. `shadow`: its own limits are counted,
    not enforced, by its own or by the pool's enforcement.
    """

    __slots__ = (
        "_allowance", "_prefixes", "blocks_drain", "charged", "context", "doubt", "live", "outputs", "pressed",
        "sequences", "sequences_drain", "shadow", "share", "shed_percent", "soft", "tally", "tenant", "waiting",
    )  # fmt: skip

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.share: TenantShare | None = None
        self.soft = Blocks(0)
        self.context = Tokens(1)
        self.shed_percent = 0.0
        self.live: dict[int, Entry] = {}
        self.waiting: dict[int, Entry] = {}
        self.charged = 0
        self.doubt = 0
        self.sequences = 0
        self.pressed = False
        self.shadow = False
        self.outputs = Outputs()
        self.tally = Tally()
        self.blocks_drain = Drain()
        self.sequences_drain = Drain()
        self._prefixes: dict[int, Prefixes[Key]] = {}  # by the place of the rank
        self._allowance: Allowance | None = None  # until one of its answers is to say it

    def draw(self, lines: Lines, max_model_len: Tokens) -> None:
        """Take over what config and pool give it; nothing where the config does not name it."""
        self._allowance = None
        self.soft = lines.softs.get(self.tenant, Blocks(0))
        self.shed_percent = lines.sheds.get(self.tenant, 0.0)
        if self.share is not None:
            self.context = max_model_len if self.shadow else context_limit(self.share, max_model_len)

    def allowance(self, usable: Blocks, worth: Worth) -> Allowance:
        """What its answers say of its limits, in a pool of `usable` blocks that are worth so much.

        Made once and kept until `draw`: neither of the two changes without it.
        """
        if self._allowance is None:
            most = None if self.share is None else self.share.max_concurrent_requests
            self._allowance = allowance_of(self.soft, min(self.hard, usable), worth, most)
        return self._allowance

    @property
    def idle(self) -> bool:
        """Whether nothing of this tenant is left to release."""
        return self.sequences == 0

    @property
    def hard(self) -> Blocks:
        """The hard of today; nothing for a tenant that has none any more."""
        return Blocks(0 if self.share is None else self.share.hard_blocks)

    @property
    def enforcement(self) -> Enforcement:
        return "Enforce" if self.share is None else self.share.enforcement

    @property
    def unclaimed(self) -> int:
        """What the tenant may still claim of its soft: its part of G."""
        left = self.soft - self.charged
        return left if left > 0 else 0

    @property
    def is_doubtful(self) -> bool:
        """Whether what it may hold is so near its hard that prompts known by estimate are to be counted."""
        return not self.shadow and self.charged + self.doubt > COUNTED_FROM * self.hard

    def filled(self) -> int:
        """Blocks of the live requests that are in the engine, as far as it was seen."""
        return sum(entry.filled() for entry in self.live.values())

    def over_soft(self) -> Iterator[Entry]:
        """The live requests that are not protected, in order of admission."""
        left = int(self.soft)
        entries = iter(self.live.values())
        for entry in entries:
            left -= entry.charge
            if left < 0:
                yield entry
                yield from entries

    def over_hard(self) -> Entry | None:
        """The youngest unprotected request that is held against a hard which the tenant has passed."""
        found = None
        for entry in self.over_soft():
            if self.charged > max(self.hard, entry.hard):
                found = entry
        return found

    def learn(self, entry: Entry, cause: Cause) -> None:
        """Remember how long an output became; one of which nothing was seen says nothing, and one that came to its own
        limit would have gone on."""
        if not entry.produced:
            return
        if cause is Cause.FINISHED and entry.produced < entry.limit:
            self.outputs.finished(entry.produced)
        else:
            self.outputs.ended(entry.produced)

    def join(self, entry: Entry) -> None:
        """Compare the prompts of a request that comes with those that are here already."""
        if not entry.tariff.shares or entry.kind == "Pool":
            return
        for key, prompt in _shareable(entry):
            prefixes = self._prefixes.setdefault(entry.rank, Prefixes())
            prompt.leading = prefixes.add(key, prompt.chain)
            entry.shares = True

    def part(self, entry: Entry) -> tuple[Entry, ...]:
        """Compare the prompts of a request no longer; who has to pay for more from now on, as its prompts say."""
        if not entry.shares:
            return ()
        entry.shares = False
        heirs: dict[int, Entry] = {}
        prefixes = self._prefixes[entry.rank]
        for key, prompt in _shareable(entry):
            prompt.leading = 0
            for (ticket, place), leading in prefixes.remove(key).items():
                if ticket != entry.ticket:
                    heirs[ticket] = self._entry(ticket)
                    heirs[ticket].prompts[place].leading = leading
        return tuple(heirs.values())

    def freed(self, entry: Entry, gone: frozenset[int]) -> int:
        """Blocks that ending a live request frees when those of `gone` have been ended: what others share stays."""
        if not entry.shares:
            return entry.charge
        left, prefixes = _Keys(gone), self._prefixes[entry.rank]
        leading = {key: prefixes.leading(key, left) for key, _ in _shareable(entry)}
        fallen = prefixes.fallen(leading, left)
        rises = [self._rise(key, prefixes.leading(key, left), fell) for key, fell in fallen.items()]
        return self._cost_at(entry, leading) - sum(rises)

    def leading(self, entry: Entry) -> list[int]:
        """Chunks of each of its prompts that older requests hold."""
        found = dict.fromkeys(range(len(entry.prompts)), 0)
        if entry.shares:
            prefixes = self._prefixes[entry.rank]
            found |= {place: prefixes.leading((ticket, place)) for (ticket, place), _ in _shareable(entry)}
        return list(found.values())

    def check_prefixes(self) -> None:
        """Raise LedgerError where what its prompts have in common does not add up."""
        for prefixes in self._prefixes.values():
            prefixes.check_integrity()

    def _entry(self, ticket: int) -> Entry:
        return self.live[ticket] if ticket in self.live else self.waiting[ticket]

    def _rise(self, key: Key, before: int, after: int) -> int:
        entry = self._entry(key[0])
        return self._cost_at(entry, {key: after}) - self._cost_at(entry, {key: before})

    def _cost_at(self, entry: Entry, leading: dict[Key, int]) -> int:
        """The cost of a request if older ones held so many chunks of its prompts."""
        kept = [prompt.leading for prompt in entry.prompts]
        for (_, place), chunks in leading.items():
            entry.prompts[place].leading = chunks
        cost = entry.cost()
        for prompt, chunks in zip(entry.prompts, kept, strict=True):
            prompt.leading = chunks
        return cost


def _shareable(entry: Entry) -> Iterator[tuple[Key, Prompt]]:
    for place, prompt in enumerate(entry.prompts):
        if prompt.chain and prompt.size:
            yield (entry.ticket, place), prompt
