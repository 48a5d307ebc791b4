"""The traffic port: from a request to an answer, a refusal, or a relay to the engine.

The order is fixed: route, config, identity, drain (all from the head, before a byte of the body is held), then shape
and quota. Whatever is refused here holds nothing; whatever was admitted is a Relay's from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from kvquota_api.amounts import Tokens
from kvquota_api.pod_config import FailurePolicy
from kvquota_sidecar.clock import Clock
from kvquota_sidecar.estimate.edit import edited
from kvquota_sidecar.estimate.salt import derived_salt
from kvquota_sidecar.estimate.shape import PromptSize, Shape, read_shape
from kvquota_sidecar.ledger.asking import Ask
from kvquota_sidecar.proxy.answers import Answer
from kvquota_sidecar.proxy.forwarding import engine_request
from kvquota_sidecar.proxy.head import Fault, Head
from kvquota_sidecar.proxy.identity import Directory, Failure, identify, to_withhold
from kvquota_sidecar.proxy.own_usage import own_usage
from kvquota_sidecar.proxy.reading import Request
from kvquota_sidecar.proxy.refusing import fault_refusal, good_headers, identity_refusal, refusal_answer
from kvquota_sidecar.proxy.relay import Desk, Job, Relay
from kvquota_sidecar.proxy.routes import PATHS, Route, find_route
from kvquota_sidecar.proxy.service import Client, Ends
from kvquota_sidecar.refusals import Code, Refusal, refuse

_SALTED_ENGINES = frozenset({"vLLM", "SGLang"})  # that keep their prefix cache apart by `cache_salt`
# Tokens that vLLM 0.32 makes where a completion sets no limit (CompletionRequest.max_tokens); a chat fills the context.
_COMPLETION_LIMIT = {"vLLM": Tokens(16)}
_ASKED_FOR_USAGE = frozenset({"/v1/chat/completions", "/v1/completions"})
_USAGE_ASKED = b'{"include_usage":true}'


@dataclass(frozen=True, slots=True)
class Admittance:
    """What a head says: `tenant` and `directory` are None where no quota applies."""

    route: Route
    tenant: str | None
    directory: Directory | None


class Standing(Protocol):
    """How this pod stands, as its traffic sees it."""

    @property
    def directory(self) -> Directory | None:
        """Config and identity in force; None before the first config."""

    @property
    def is_leaving(self) -> bool:
        """Whether the drain has begun."""

    def refusal(self) -> Refusal | None:
        """Why no traffic is taken now."""

    def unready(self) -> Refusal | None:
        """Why no traffic should be sent here now."""


class Traffic:
    """The service of the traffic port."""

    def __init__(
        self,
        desk: Desk,
        standing: Standing,
        *,
        policy: FailurePolicy,
        new_id: Callable[[], str],
        salt_key: bytes,
        wall: Clock,
    ) -> None:
        self._desk = desk
        self._standing = standing
        self._policy = policy
        self._new_id = new_id
        self._salt_key = salt_key
        self._wall = wall

    @property
    def is_leaving(self) -> bool:
        return self._standing.is_leaving

    def examine(self, head: Head, ends: Ends) -> Answer | Admittance:  # noqa: ARG002 - an address is no proof
        """Look at a head."""
        route = find_route(head.method, head.path)
        if route is None:
            return self._refuse(refuse(Code.ROUTE_NOT_ALLOWED), head.path, None)
        if route.purpose == "Health":
            return Admittance(route, None, None)
        directory = self._standing.directory
        if directory is None:
            return self._examine_unconfigured(route)
        tenant = identify(head, directory)
        if isinstance(tenant, Failure):
            return self._refuse(identity_refusal(tenant), route.path, None)
        refusal = self._standing.refusal()
        if refusal is not None:
            return self._refuse(refusal, route.path, tenant)
        return Admittance(route, tenant, directory)

    def owner(self, context: Admittance) -> str | None:
        """The tenant, where there are others whom it must leave room."""
        return context.tenant if context.directory is not None and len(context.directory.tenants) > 1 else None

    def serve(self, request: Request, context: Admittance, client: Client) -> None:
        """Answer a request whose head was admitted."""
        if context.route.purpose == "Generate":
            self._generate(request, context, client)
        elif context.route.purpose == "Health":
            self._health(request, context, client)
        elif context.route.purpose == "OwnUsage":
            client.answer(self._own_usage(context.tenant))
        else:
            self._relay(request, context, Job(self._new_id(), context.route, context.tenant), client)

    def answer_fault(self, fault: Fault, head: Head | None) -> Answer:
        """The refusal of a request that cannot be read."""
        return self._refuse(fault_refusal(fault), "" if head is None else head.path, None)

    # The inside.

    def _examine_unconfigured(self, route: Route) -> Answer | Admittance:
        refusal = self._standing.refusal()
        if refusal is None and self._policy == "Closed":
            refusal = refuse(Code.NOT_CONFIGURED)
        if refusal is not None:
            return self._refuse(refusal, route.path, None)
        self._desk.tally.passed_unconfigured += route.purpose == "Generate"
        return Admittance(route, None, None)

    def _health(self, request: Request, context: Admittance, client: Client) -> None:
        unready = self._standing.unready()
        if unready is not None:
            client.answer(refusal_answer(unready, context.route.path))
        else:
            self._relay(request, context, Job(self._new_id(), context.route), client)

    def _own_usage(self, tenant: str | None) -> Answer:
        room = None if tenant is None else self._desk.room(tenant)
        if room is None:
            return refusal_answer(refuse(Code.NOT_CONFIGURED), "/v1/usage")
        usages = self._desk.books.tenant_usage(self._desk.clock(), self._wall())
        mine = next(each for each in usages if each.id == tenant)
        return Answer(200, own_usage(mine, room), good_headers(room))

    def _generate(self, request: Request, context: Admittance, client: Client) -> None:
        if context.tenant is None or context.directory is None:
            self._relay(request, context, Job(self._new_id(), context.route), client)
            return
        shape = read_shape(context.route.path, request.body)
        if isinstance(shape, Refusal):
            client.answer(self._refuse(shape, context.route.path, context.tenant))
            return
        self._ask(request, context, context.tenant, shape, client)

    def _ask(self, request: Request, context: Admittance, tenant: str, shape: Shape, client: Client) -> None:
        prompts = tuple(self._tokens(tenant, prompt) for prompt in shape.prompts)
        limit = _engine_limit(context) if shape.output_limit is None else shape.output_limit
        wanted = Ask(tenant, prompts, shape.copies, limit, growth="Seen" if shape.stream else "Unseen")
        verdict = self._desk.books.ask(wanted, self._desk.clock())
        if isinstance(verdict, Refusal):
            client.answer(self._refuse(verdict, context.route.path, tenant, counted=True))
            return
        job = Job(
            request_id=self._new_id(),
            route=context.route,
            tenant=tenant,
            ticket=verdict.ticket,
            prompt_bytes=sum(each.sure for each in shape.prompts) if _is_all_text(shape.prompts) else 0,
            estimated=sum(prompts),
            withholds_usage=_lacks_usage(context.route, shape),
        )
        self._relay(request, context, job, client, shape)

    def _tokens(self, tenant: str, prompt: PromptSize) -> Tokens:
        return self._desk.ratios.estimate(tenant, prompt.size) if prompt.tokens is None else prompt.tokens

    def _relay(
        self, request: Request, context: Admittance, job: Job, client: Client, shape: Shape | None = None
    ) -> None:
        body = request.body if shape is None else self._body(request.body, context, job, shape)
        authority = self._desk.pool.address.authority
        withheld = frozenset[bytes]() if context.directory is None else to_withhold(request.head, context.directory)
        Relay(job, client, self._desk).start(engine_request(request.head, body, authority, job.request_id, withheld))

    def _body(self, body: bytes, context: Admittance, job: Job, shape: Shape) -> bytes:
        """The body with what only this program may say: see the invariants of `proxy.forwarding`."""
        changes: dict[str, bytes | None] = {"priority": None, "vllm_xargs": None, "cache_salt": None}
        if context.directory is not None and context.directory.config.engine_type in _SALTED_ENGINES:
            salt = derived_salt(self._key(context.directory), job.tenant or "", shape.cache_salt)
            changes["cache_salt"] = msgspec.json.encode(salt)
        if job.withholds_usage:
            changes["stream_options"] = _USAGE_ASKED
        return edited(body, shape.fields, changes)

    def _key(self, directory: Directory) -> bytes:
        """The pool's own secret, the same after a restart; a random one where no identity has come."""
        return self._salt_key if directory.identity is None else b"cache-salt:" + directory.identity.pepper.encode()

    def _refuse(self, refusal: Refusal, path: str, tenant: str | None, *, counted: bool = False) -> Answer:
        desk = self._desk
        if tenant is not None and not counted:
            desk.books.count_refusal(tenant, refusal, desk.clock())
        route = path if path in PATHS else "other"
        desk.tally.requests[route, refusal.code.value] += 1
        desk.journal.write("refused", route=route, tenant=tenant, code=refusal.code.value, status=refusal.status)
        return refusal_answer(refusal, path, desk.room(tenant))


def _engine_limit(context: Admittance) -> Tokens | None:
    """The engine's own limit for a request that sets none; None where there is none but the context."""
    if context.directory is None or context.route.path != "/v1/completions":
        return None
    return _COMPLETION_LIMIT.get(context.directory.config.engine_type)


def _is_all_text(prompts: tuple[PromptSize, ...]) -> bool:
    return all(each.tokens is None for each in prompts)


def _lacks_usage(route: Route, shape: Shape) -> bool:
    """Whether the stream would end without the engine's own count, which only these two routes have to be asked for."""
    return shape.stream and not shape.include_usage and route.path in _ASKED_FOR_USAGE
