"""From a body to the engine: its shape, what it will take, what the books say of that, and what follows from it.

The order is fixed: shape, estimate, books. What is refused here holds nothing; what was admitted is a Relay's from then
on, what waits is a Waiter's or Counted's.
"""

from __future__ import annotations

from typing import Final

from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.shape import PromptSize, read_shape
from kvquota_sidecar.ledger.asking import Admitted, Ask, AskedPrompt, LedgerError, Waiting
from kvquota_sidecar.proxy.desk import Desk
from kvquota_sidecar.proxy.engine_body import Salts, engine_body, lacks_usage, priority_of
from kvquota_sidecar.proxy.forwarding import engine_request
from kvquota_sidecar.proxy.identity import Directory, to_withhold
from kvquota_sidecar.proxy.reading import Request
from kvquota_sidecar.proxy.relay import Job, Relay
from kvquota_sidecar.proxy.routes import Route
from kvquota_sidecar.proxy.service import Client
from kvquota_sidecar.proxy.waiting import Counted, Waiter, Wish
from kvquota_sidecar.refusals import Refusal

# Requests whose tokens are counted at a time; more are taken at the worst. The tokenizer is the engine's own, and one
# that is asked for more than that in 50 ms is late for everybody.
MAX_COUNTING: Final = 64
MAX_COUNTING_OF_ONE: Final = 16  # and of them for one tenant: what it asks at its border must not make others wait


class Clerk:
    """See the module. `salt_key`: secret, for pools that have no identity of their own."""

    def __init__(self, desk: Desk, salt_key: bytes) -> None:
        self._desk = desk
        self._salt_key = salt_key
        self._salts: Salts | None = None

    def take(self, request: Request, route: Route, tenant: str, directory: Directory, client: Client) -> None:
        """Answer a request that is charged to a tenant, now or later."""
        config, name = directory.config, self._desk.name(request.head)
        shape = read_shape(route.path, request.body, config.media, config.engine_type)
        if isinstance(shape, Refusal):
            self._desk.books.count_refusal(tenant, shape, self._desk.clock())
            client.answer(self._desk.refuse(shape, name, route.path, tenant))
            return
        wish = Wish(name, request, route, tenant, directory, shape, client)
        self.ask(wish, tuple(self._estimated(tenant, each) for each in shape.prompts))
        self._desk.turn()

    def pass_on(
        self, request: Request, route: Route, tenant: str | None, directory: Directory | None, client: Client
    ) -> None:
        """Send a request to the engine as it is; nothing is charged for it."""
        job = Job(self._desk.name(request.head), route, tenant)
        withheld = frozenset[bytes]() if directory is None else to_withhold(request.head, directory)
        with Relay(job, client, self._desk) as relay:
            relay.start(engine_request(request.head, request.body, self._authority, job.name.own, withheld))

    # What a request that has waited calls.

    def ask(self, wish: Wish, prompts: tuple[AskedPrompt, ...]) -> None:
        """Ask the books, and do what they say of this request. Their turn is the caller's."""
        shape = wish.shape
        asked = Ask(
            wish.tenant,
            prompts,
            shape.copies,
            shape.output_limit,
            growth="Seen" if shape.stream else "Unseen",
            kind=shape.kind,
        )
        answer = self._desk.books.ask(asked, self._desk.clock())
        if isinstance(answer, Admitted):
            self.forward(wish, prompts, answer)
        elif isinstance(answer, Refusal):
            self.turn_away(wish, answer)
        elif isinstance(answer, Waiting):
            Waiter(wish, prompts, answer.ticket, self, self._desk)
        else:
            self._count(wish, prompts)

    def exact(self, wish: Wish, counts: tuple[Tokens, ...] | None) -> tuple[AskedPrompt, ...]:
        """The prompts by the engine's own count; where it did not come in time, by the worst that was ever seen."""
        sizes = wish.shape.prompts
        if counts is None:
            counts = tuple(self._desk.ratios.worst(each) for each in sizes)
        return tuple(
            AskedPrompt(tokens, tokens, size.chain, size.span) for tokens, size in zip(counts, sizes, strict=True)
        )

    def forward(self, wish: Wish, prompts: tuple[AskedPrompt, ...], admitted: Admitted) -> None:
        """Send an admitted request to the engine."""
        job = self._job(wish, prompts, admitted.ticket)
        with Relay(job, wish.client, self._desk) as relay:
            relay.start(self._engine_request(wish, job, admitted))

    def turn_away(self, wish: Wish, refusal: Refusal) -> None:
        """Answer with a refusal that the books have counted."""
        wish.client.answer(self._desk.refuse(refusal, wish.name, wish.route.path, wish.tenant))

    # The inside.

    @property
    def _authority(self) -> bytes:
        return self._desk.pool.address.authority

    def _count(self, wish: Wish, prompts: tuple[AskedPrompt, ...]) -> None:
        if all(each.tokens == each.most for each in prompts):
            raise LedgerError("the books want to know more exactly what is exact")
        of_one = sum(each.tenant == wish.tenant for each in self._desk.counting)
        if len(self._desk.counting) >= MAX_COUNTING or of_one >= MAX_COUNTING_OF_ONE:
            self.ask(wish, self.exact(wish, None))
            return
        self._desk.tally.tokenizer_asked += 1
        Counted(wish, self, self._desk).start()

    def _estimated(self, tenant: str, prompt: PromptSize) -> AskedPrompt:
        ratios = self._desk.ratios
        return AskedPrompt(ratios.estimate(tenant, prompt), ratios.most(prompt), prompt.chain, prompt.span)

    def _job(self, wish: Wish, prompts: tuple[AskedPrompt, ...], ticket: int) -> Job:
        return Job(
            name=wish.name,
            route=wish.route,
            tenant=wish.tenant,
            ticket=ticket,
            prompts=wish.shape.prompts,
            estimated=sum(each.tokens for each in prompts),
            withholds_usage=lacks_usage(wish.route.path, wish.shape),
        )

    def _engine_request(self, wish: Wish, job: Job, admitted: Admitted) -> bytes:
        head, body, path, shape = wish.request.head, wish.request.body, wish.route.path, wish.shape
        priority = priority_of(shape, wish.tenant, wish.directory, protected=admitted.protected)
        salt = self._salts_of(wish.directory).salt(wish.tenant, shape.cache_salt)
        return engine_request(
            head,
            engine_body(body, path, shape, salt, priority),
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
