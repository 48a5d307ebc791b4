"""From a body to the engine: its shape, what it will take, what the books say of that, and what follows from it.

The order is fixed: shape, estimate, books. What is refused here holds nothing; what was admitted is a Relay's from then
on, what waits is a Waiter's, Counted's or Doubtful's.
"""

from __future__ import annotations

import math
from typing import Final

from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.questions import is_askable
from kvquota_sidecar.estimate.shape import PromptSize, read_shape
from kvquota_sidecar.ledger.asking import Admitted, Ask, AskedPrompt, Waiting
from kvquota_sidecar.proxy.counting import DEADLINE_SECONDS
from kvquota_sidecar.proxy.desk import Desk
from kvquota_sidecar.proxy.engine_body import Salts, engine_body, lacks_usage, priority_of
from kvquota_sidecar.proxy.forwarding import engine_request
from kvquota_sidecar.proxy.identity import Directory, to_withhold
from kvquota_sidecar.proxy.reading import Request
from kvquota_sidecar.proxy.relay import Job, Relay
from kvquota_sidecar.proxy.retries import Retries
from kvquota_sidecar.proxy.routes import Route
from kvquota_sidecar.proxy.service import Client
from kvquota_sidecar.proxy.stream_ends import marks_end
from kvquota_sidecar.proxy.usage_scope import usage_scope
from kvquota_sidecar.proxy.waiting import Counted, Doubtful, Waiter
from kvquota_sidecar.proxy.wishing import Wish
from kvquota_sidecar.refusals import Refusal

# Requests that wait at a time for their tokens, or those of others, to be counted; more are taken at the worst. The
# tokenizer is the engine's own, and one that is asked for more than that in 50 ms is late for everybody.
MAX_COUNTING: Final = 64
MAX_COUNTING_OF_ONE: Final = 16  # and of them for one tenant: what it asks at its border must not make others wait


class Clerk:
    """See the module. `salt_key`: secret, for pools that have no identity of their own."""

    def __init__(self, desk: Desk, salt_key: bytes) -> None:
        self._desk = desk
        self._salt_key = salt_key
        self._salts: Salts | None = None
        self._retries = Retries()

    def take(self, request: Request, route: Route, tenant: str, directory: Directory, client: Client) -> None:
        """Answer a request that is charged to a tenant, now or later."""
        config, name = directory.config, self._desk.name(request.head)
        shape = self._retries.recall(tenant, route.path, request.body, directory) or read_shape(
            route.path, request.body, config.media, config.engine_type, shares=config.kv.shares_prefixes
        )
        if isinstance(shape, Refusal):
            self._desk.books.count_refusal(tenant, shape, self._desk.clock())
            client.answer(self._desk.refuse(shape, name, route.path, tenant))
            return
        wish = Wish(name, request, route, tenant, directory, shape, client)
        sizes = shape.prompts
        if len(sizes) == 1:
            self.ask(wish, (self._estimated(tenant, sizes[0]),))
        else:
            self.ask(wish, tuple([self._estimated(tenant, each) for each in sizes]))
        self._desk.turn()

    def pass_on(
        self, request: Request, route: Route, tenant: str | None, directory: Directory | None, client: Client
    ) -> None:
        """Send a request to the engine as it is; nothing is charged for it."""
        job = Job(self._desk.name(request.head), route, tenant)
        withheld = frozenset[bytes]() if directory is None else to_withhold(request.head, directory)
        relay = Relay(job, client, self._desk)
        try:
            relay.start(engine_request(request.head, request.body, self._authority, job.name.own, withheld))
        except BaseException:
            relay.abandon()
            raise

    # What a request that has waited calls.

    def ask(self, wish: Wish, prompts: tuple[AskedPrompt, ...], until: float = math.inf) -> None:
        """Ask the books, and do what they say of this request. Their turn is the caller's.

        `until`: when it is over with waiting for the doubt in others, in monotonic seconds.
        """
        shape, now = wish.shape, self._desk.clock()
        asked = Ask(
            wish.tenant,
            prompts,
            shape.copies,
            shape.output_limit,
            growth="Seen" if shape.shows_output else "Unseen",
            kind=shape.kind,
            final=now >= until,
        )
        answer = self._desk.books.ask(asked, now)
        if isinstance(answer, Admitted):
            self.forward(wish, prompts, answer)
            if answer.is_doubtful and answer.ticket in self._desk.tickets:
                self._desk.doubts.open(answer.ticket, wish, at_once=answer.count)
        elif isinstance(answer, Refusal):
            self.turn_away(wish, answer)
        elif isinstance(answer, Waiting):
            Waiter(wish, prompts, answer.ticket, self, self._desk)
            if answer.is_doubtful:
                self._desk.doubts.open(answer.ticket, wish, at_once=answer.count)
        elif all(each.tokens == each.most for each in prompts):
            self._wait_for_others(wish, prompts, min(until, now + DEADLINE_SECONDS))
        else:
            self._count(wish)

    def exact(self, wish: Wish, counts: tuple[Tokens, ...] | None) -> tuple[AskedPrompt, ...]:
        """The prompts by the engine's own count; where it did not come in time, by the worst that was ever seen."""
        sizes = wish.shape.prompts
        if counts is not None:
            return tuple(
                AskedPrompt(tokens, tokens, size.chain, size.span) for tokens, size in zip(counts, sizes, strict=True)
            )
        worst = self._desk.ratios.worst
        return tuple(
            AskedPrompt(worst(each), worst(each), each.chain, each.span, guessed=each.tokens is None) for each in sizes
        )

    def forward(self, wish: Wish, prompts: tuple[AskedPrompt, ...], admitted: Admitted) -> None:
        """Send an admitted request to the engine."""
        job = self._job(wish, prompts, admitted.ticket)
        relay = Relay(job, wish.client, self._desk)
        try:
            relay.start(self._engine_request(wish, job, admitted))
        except BaseException:
            relay.abandon()
            raise

    def turn_away(self, wish: Wish, refusal: Refusal) -> None:
        """Answer with a refusal that the books have counted."""
        path, tenant = wish.route.path, wish.tenant
        self._retries.keep(tenant, path, wish.request.body, wish.directory, wish.shape)
        wish.client.answer(self._desk.refuse(refusal, wish.name, path, tenant))

    # The inside.

    @property
    def _authority(self) -> bytes:
        return self._desk.pool.address.authority

    def _count(self, wish: Wish) -> None:
        engine = wish.directory.config.engine_type
        if not (is_askable(engine, wish.route.path) and self._may_wait(wish.tenant)):
            self.ask(wish, self.exact(wish, None))
            return
        self._desk.tally.tokenizer_asked += 1
        Counted(wish, self, self._desk).start()

    def _wait_for_others(self, wish: Wish, prompts: tuple[AskedPrompt, ...], until: float) -> None:
        """Only what its tenant's others may hold stands in its way: have them counted."""
        awaited = self._desk.doubts.count(wish.tenant) if self._may_wait(wish.tenant) else None
        if awaited:
            Doubtful(wish, prompts, until, self, self._desk).start(awaited)
        else:
            self.ask(wish, prompts, -math.inf)

    def _may_wait(self, tenant: str) -> bool:
        of_one = sum([each.tenant == tenant for each in self._desk.counting])
        return len(self._desk.counting) < MAX_COUNTING and of_one < MAX_COUNTING_OF_ONE

    def _estimated(self, tenant: str, prompt: PromptSize) -> AskedPrompt:
        ratios = self._desk.ratios
        return AskedPrompt(ratios.estimate(tenant, prompt), ratios.most(prompt), prompt.chain, prompt.span)

    def _job(self, wish: Wish, prompts: tuple[AskedPrompt, ...], ticket: int) -> Job:
        shape, route = wish.shape, wish.route
        return Job(
            name=wish.name,
            route=route,
            tenant=wish.tenant,
            ticket=ticket,
            prompts=shape.prompts,
            estimated=prompts[0].tokens if len(prompts) == 1 else sum([each.tokens for each in prompts]),
            withholds_usage=lacks_usage(route.path, shape),
            marks_end=marks_end(wish.directory.config.engine_type, route.path),
            tokens_per_frame=self._desk.paces.tokens_per_frame(wish.tenant) if shape.shows_output else None,
            scope=usage_scope(wish.directory.config.engine_type, len(shape.prompts)),
        )

    def _engine_request(self, wish: Wish, job: Job, admitted: Admitted) -> bytes:
        head, body, path, shape = wish.request.head, wish.request.body, wish.route.path, wish.shape
        config = wish.directory.config
        priority = priority_of(shape, wish.tenant, wish.directory, protected=admitted.protected)
        salt = self._salts_of(wish.directory).salt(wish.tenant, shape.cache_salt)
        return engine_request(
            head,
            engine_body(body, path, shape, salt, priority, limit=admitted.limit, engine=config.engine_type),
            self._authority,
            job.name.own,
            to_withhold(head, wish.directory),
            rank=admitted.rank,
            priority=None if shape.kind == "Pool" else priority,
        )

    def _salts_of(self, directory: Directory) -> Salts:
        """By the pool's own secret, the same after a restart; by a random one where no identity has come."""
        if self._salts is None or self._salts.directory is not directory:
            identity = directory.identity
            key = self._salt_key if identity is None else b"cache-salt:" + identity.pepper.encode()
            self._salts = Salts(directory, key)
        return self._salts
