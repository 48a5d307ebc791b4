"""Who is in the books: tenants, requests, and the sums over them.

Decides nothing; it changes everything that a step of a request changes, at once. Pure.

Invariants (`check_integrity` verifies them):

1. C(t) is the sum of the charges of t's live and waiting requests; ΣC the sum over the tenants, and over the ranks.
2. `claims` is the sum of what tenants may still claim of their softs.
3. A request is in `entries` until it is released, exactly once. One that was ended, or whose engine has restarted, is
   charged nothing from that moment.
4. Each block is paid by the oldest request of a tenant that holds it.

It does not know who may take more, nor who has to give back.
"""

from __future__ import annotations

from typing import Final

from kvquota_api.amounts import Blocks
from kvquota_sidecar.ledger.accounts import Account
from kvquota_sidecar.ledger.asking import LedgerError
from kvquota_sidecar.ledger.entries import Entry, State, doubt_of
from kvquota_sidecar.ledger.gauge import Holding
from kvquota_sidecar.ledger.ranks import Rank, Ranks

_NO_BLOCKS: Final = Blocks(0)


class Roll:
    """`queue`: the requests that wait for room, in order of arrival. `charged`: ΣC."""

    __slots__ = ("accounts", "charged", "claims", "entries", "queue", "ranks")

    def __init__(self, ranks: Ranks) -> None:
        self.accounts: dict[str, Account] = {}
        self.entries: dict[int, Entry] = {}
        self.queue: dict[int, Entry] = {}
        self.ranks = ranks
        self.charged = 0
        self.claims = 0

    def entry(self, ticket: int) -> Entry:
        """Raises LedgerError for a ticket that is not in the books."""
        entry = self.entries.get(ticket)
        if entry is None:
            raise LedgerError(f"ticket {ticket} is not in the books: it was released before, or never given")
        return entry

    # -- the steps of a request

    def take(self, account: Account, entry: Entry) -> None:
        """A request begins to run."""
        account.live[entry.ticket] = entry
        self._book(account, entry)
        self.ranks.each[entry.rank].gauge.promised(entry.charge)

    def enqueue(self, account: Account, entry: Entry) -> None:
        """A request begins to wait."""
        entry.state = State.WAITING
        account.waiting[entry.ticket] = self.queue[entry.ticket] = entry
        self._book(account, entry)

    def admit(self, entry: Entry, now: float) -> None:
        """A request that waited begins to run."""
        account, rank = self.accounts[entry.tenant], self.ranks.each[entry.rank]
        del self.queue[entry.ticket], account.waiting[entry.ticket]
        account.live[entry.ticket] = entry
        entry.state, entry.admitted_at = State.LIVE, now
        rank.waiting -= entry.charge
        rank.gauge.promised(entry.charge)

    def withdraw(self, entry: Entry) -> None:
        """A request waits no longer, and is out of the books."""
        account = self.accounts[entry.tenant]
        del self.queue[entry.ticket], account.waiting[entry.ticket]
        self._move(account, entry, -entry.charge)
        account.doubt -= entry.doubt
        entry.doubt = 0
        for heir in account.part(entry):
            self.recharge(heir)
        self.forget(entry)

    def recharge(self, entry: Entry) -> int:
        """Charge what a request costs by now; by how much that is more."""
        more = entry.cost() - entry.charge
        if more:
            entry.charge = Blocks(entry.charge + more)
            self._move(self.accounts[entry.tenant], entry, more)
            if entry.state is State.LIVE and more > 0:
                self.ranks.each[entry.rank].gauge.promised(more)
        self._doubt_anew(entry)
        return more

    def unpromise(self, entry: Entry, blocks: int) -> None:
        """`blocks` of it will never be filled. Of what an earlier reading counted, the next one has to say it."""
        gauge = self.ranks.each[entry.rank].gauge
        if entry.admitted_at > gauge.read_at:
            gauge.promised(-blocks)

    def close(self, entry: Entry, state: State, filled: int, now: float) -> int:
        """A live request is charged nothing any more, and the `filled` blocks that it holds are about to be freed.

        How many blocks less its tenant is charged: what others of its requests hold too they pay for from now on.
        """
        account, less = self.accounts[entry.tenant], int(entry.charge)
        del account.live[entry.ticket]
        self._move(account, entry, -less)
        account.doubt -= entry.doubt
        entry.doubt, entry.charge, entry.state = 0, _NO_BLOCKS, state
        for heir in account.part(entry) if entry.shares else ():
            inherited = self._inherit(heir)
            less -= inherited
            filled -= inherited
        self.ranks.each[entry.rank].gauge.ended(max(0, filled), now)
        return less

    def note_started(self, rank: Rank) -> None:
        """The engine lets nothing wait on a rank: it has taken up all that was admitted before the reading before."""
        for entry in self.entries.values():
            if entry.state is State.LIVE and entry.rank == rank.place and entry.admitted_at < rank.gauge.read_at:
                entry.started = True

    def forget(self, entry: Entry) -> None:
        """A request is out of the books."""
        if entry.state is not State.DEAD:
            self.accounts[entry.tenant].sequences -= entry.sequences
        del self.entries[entry.ticket]

    # -- what follows from all of them

    def holding(self, rank: Rank) -> Holding:
        """What the running requests of a rank hold."""
        seen = unseen = silent = 0
        for entry in self.entries.values():
            if entry.state is State.LIVE and entry.rank == rank.place:
                seen += entry.seen()
                unseen += entry.unseen()
                silent += 0 if entry.produced else entry.charge
        return Holding(rank.charged - rank.waiting, seen, unseen, silent)

    def sequences(self) -> int:
        """Of all requests that do not wait and are not released."""
        return sum(each.sequences for each in self.entries.values() if each.state is not State.WAITING)

    def check_integrity(self) -> None:
        """Raise LedgerError where a sum is not what its parts are."""
        for account in self.accounts.values():
            self._check_account(account)
            account.check_prefixes()
        for rank in self.ranks.each:
            self._check_rank(rank)
        accounts = self.accounts.values()
        _require("the sum of all C", self.charged, sum(each.charged for each in accounts))
        _require("the sum of all claims", self.claims, sum(each.unclaimed for each in accounts))
        _require("the queue", list(self.queue), [each.ticket for each in self._in(State.WAITING)])
        for entry in self.entries.values():
            charged = entry.state in {State.LIVE, State.WAITING}
            _require(f"ticket {entry.ticket}", entry.charge, entry.cost() if charged else 0)
            _require(f"the doubt in {entry.ticket}", entry.doubt, doubt_of(entry) if charged else 0)
            self._check_sharing(entry)

    # -- inside

    def _book(self, account: Account, entry: Entry) -> None:
        self.entries[entry.ticket] = entry
        account.sequences += entry.sequences
        account.doubt += entry.doubt
        self._move(account, entry, entry.charge)

    def _inherit(self, heir: Entry) -> int:
        """A live request has gone whose blocks this one holds too: it pays for them, and they are filled already."""
        more = heir.cost() - heir.charge
        heir.charge = Blocks(heir.charge + more)
        self._move(self.accounts[heir.tenant], heir, more)
        self._doubt_anew(heir)
        return more

    def _doubt_anew(self, entry: Entry) -> None:
        """What it may hold beyond its charge, after something of it has changed."""
        if entry.doubt or entry.estimated or entry.shares:
            doubt = doubt_of(entry)
            self.accounts[entry.tenant].doubt += doubt - entry.doubt
            entry.doubt = doubt

    def _move(self, account: Account, entry: Entry, blocks: int) -> None:
        rank, soft, before = self.ranks.each[entry.rank], account.soft, account.charged
        account.charged = after = before + blocks
        self.charged += blocks
        if before < soft or after < soft:
            self.claims += (soft - after if after < soft else 0) - (soft - before if before < soft else 0)
        rank.charged += blocks
        if entry.state is State.WAITING:
            rank.waiting += blocks

    def _in(self, *states: State) -> list[Entry]:
        return [each for each in self.entries.values() if each.state in states]

    def _check_account(self, account: Account) -> None:
        name, held = account.tenant, [each for each in self.entries.values() if each.tenant == account.tenant]
        live = [each for each in held if each.state is State.LIVE]
        waiting = [each for each in held if each.state is State.WAITING]
        sequences = sum(each.sequences for each in held if each.state is not State.DEAD)
        _require(f"the live requests of {name}", sorted(account.live), [each.ticket for each in live])
        _require(f"the waiting requests of {name}", list(account.waiting), [each.ticket for each in waiting])
        _require(f"C of {name}", account.charged, sum(each.charge for each in (*live, *waiting)))
        _require(f"the doubt of {name}", account.doubt, sum(each.doubt for each in (*live, *waiting)))
        _require(f"the sequences of {name}", account.sequences, sequences)

    def _check_sharing(self, entry: Entry) -> None:
        booked = [prompt.leading for prompt in entry.prompts]
        _require(f"what {entry.ticket} shares", booked, self.accounts[entry.tenant].leading(entry))

    def _check_rank(self, rank: Rank) -> None:
        here = [each for each in self._in(State.LIVE, State.WAITING) if each.rank == rank.place]
        waiting = sum(each.charge for each in here if each.state is State.WAITING)
        _require(f"what rank {rank.place} runs", rank.charged, sum(each.charge for each in here))
        _require(f"what waits for rank {rank.place}", rank.waiting, waiting)


def _require(what: str, booked: object, counted: object) -> None:
    if booked != counted:
        raise LedgerError(f"the books do not add up: {what} is {booked} and should be {counted}")
