"""No guarantee of the books is missed, under the conditions that docs/accounting.md names."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
from hypothesis.stateful import initialize, invariant, precondition, rule

from bookkeeping import BLOCK, config
from kvquota_api.pod_config import TenantShare
from kvquota_sidecar.ledger.books import Cause, Refusal
from kvquota_sidecar.refusals import Code
from ledger_clients import Wanted
from ledger_desk import Desk
from ledger_engine import ModelEngine, Text
from ledger_machines import (
    CONTEXT,
    MOST_WAIT,
    NAMES,
    OUTPUT,
    TIMES,
    USABLE,
    Counting,
    explore,
    quotas,
    usual_lists,
    usual_texts,
)


class GuaranteeMachine(Counting):
    """No guarantee is missed, where docs/accounting.md (guarantees-hold) says so.

    The gauge is read every second, and every 100 ms while somebody waits; the engine takes up what it gets between two
    readings and shows output of it, and frees what was ended at most FREES later; ended requests are released at once.
    Prompts are known exactly, outputs go to their limits or are broken off, so nothing grows past its promise. Configs
    stay, and what is in use and nobody's is no more than softs leave.
    """

    FREES = 0.9  # seconds: evictionWaitSeconds is at least twice that and one reading

    @initialize(
        shares=quotas(st.just("Enforce")), sharing=st.booleans(), foreign=st.sampled_from([0, 0, 20]), times=TIMES
    )
    def begin(self, shares: tuple[TenantShare, ...], *, sharing: bool, foreign: int, times: tuple[int, ...]) -> None:
        self.engine = ModelEngine(USABLE)
        self.desk = Desk(self.engine, CONTEXT)
        self.sharing, self.foreign = sharing, foreign
        usual = config(*shares, usable=USABLE, max_model_len=CONTEXT)
        kv = msgspec.structs.replace(usual.kv, shares_prefixes=sharing)
        self.desk.configure(msgspec.structs.replace(usual, kv=kv))
        self.read()
        self.crowd(list(NAMES), 4 * BLOCK, times)

    @rule(
        name=st.sampled_from(NAMES),
        text=usual_texts,
        limit=st.sampled_from([1, BLOCK, 4 * BLOCK, 10 * BLOCK, 30 * BLOCK]),
        copies=st.sampled_from([1, 1, 1, 2]),
        times=st.sampled_from([60, 60, 8, 1]),
    )
    def ask(self, name: str, text: Text, limit: int, copies: int, times: int) -> None:
        for _ in range(times):
            answer = self.desk.ask(Wanted(name, (text,), copies, limit, cold=not self.sharing), exact=True)
            self.obey()
            if isinstance(answer, Refusal):
                assert answer.code != Code.KV_POOL_EXHAUSTED
                return
            if len(self.desk.waiting) > MOST_WAIT:
                return

    @rule(name=st.sampled_from(NAMES), listed=usual_lists, pools=st.booleans())
    def ask_with_a_list(self, name: str, listed: tuple[Text, ...], *, pools: bool) -> None:
        self.desk.ask(Wanted(name, listed, 1, 4 * BLOCK, cold=not self.sharing, pools=pools), exact=True)
        self.obey()

    @rule(names=st.permutations(NAMES), limit=OUTPUT, times=TIMES)
    def crowd(self, names: list[str], limit: int, times: tuple[int, ...]) -> None:
        for name, most in zip(names, times, strict=True):
            self.ask(name, Text((0, 1, 0), 0), limit, 1, most)
            self.time_passes(0.1)

    @rule(seconds=st.sampled_from([0.1, 0.3, 1.0, 2.5]))
    def time_passes(self, seconds: float) -> None:
        end = self.desk.now + seconds
        last = self.desk.now
        while self.desk.now < end:
            self.desk.now += 0.05
            if self.desk.now - last >= (0.1 if self.desk.books.someone_waits else 1.0) - 1e-9:
                self.read()
                last = self.desk.now
        self.read()

    def read(self) -> None:
        self.engine.prefill(10**6, self.desk.now)
        for ticket in tuple(self.engine.running):
            if not self.engine.running[ticket].produced:
                self.engine.produce(self.engine.running[ticket], 1, self.desk.now)
                self.desk.grow(ticket)
        self.desk.observe(foreign=self.foreign)
        self.desk.call("turn", self.desk.now) if not self.desk.waiting else None
        self.obey()

    def obey(self) -> None:
        for ticket in [ticket for ticket, each in self.desk.clients.items() if each.ended]:
            self.desk.release(ticket, Cause.ENDED, self.FREES * (ticket % 4) / 3)
        assert self.desk.missed == 0

    @precondition(lambda self: self.desk.clients)
    @rule(data=st.data(), late=st.floats(0, 0.9))
    def finish(self, data: st.DataObject, late: float) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.desk.clients)), "ticket")
        self.engine.produce(self.engine.running[ticket], 10**6, self.desk.now)
        self.desk.grow(ticket)
        self.desk.release(ticket, Cause.FINISHED, late)
        self.obey()

    @precondition(lambda self: self.desk.clients or self.desk.waiting)
    @rule(data=st.data(), late=st.floats(0, 0.9))
    def abort(self, data: st.DataObject, late: float) -> None:
        tickets = sorted({**self.desk.clients, **self.desk.waiting})
        self.desk.release(data.draw(st.sampled_from(tickets), "ticket"), Cause.CLIENT_GONE, late)
        self.obey()

    @invariant()
    def all_is_well(self) -> None:
        type(self).steps += 1
        self.desk.books.check_integrity()
        if not self.sharing:
            self.desk.check_each_charge(None)
        assert self.desk.missed == 0
        assert all(self.desk.now - each.since <= 2.0 for each in self.desk.waiting.values())
        waiting = sum(entry.charge for entry in self.desk.books._roll.queue.values())
        freeing = sum(count for at, count, _ in self.engine.freeing if at > self.desk.now)
        running = sum(self.desk.charges().values()) - waiting
        assert running + freeing + self.foreign <= USABLE, "what was admitted finds room, also while others are freed"

    def teardown(self) -> None:
        for ticket in (*tuple(self.desk.clients), *tuple(self.desk.waiting)):
            if ticket in self.desk.clients or ticket in self.desk.waiting:
                self.desk.release(ticket, Cause.CLIENT_GONE)
        self.desk.check_nothing_is_left()
        type(self).met += self.desk.met


def test_guarantees_hold() -> None:
    explore(GuaranteeMachine)
