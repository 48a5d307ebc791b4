"""The traffic port: from a request to an answer, a refusal, or a relay to the engine.

The order is fixed: route, config, identity, drain; all from the head, before a byte of the body is held. What is
refused here holds nothing. What is charged to a tenant is the Clerk's from then on.
"""

from __future__ import annotations

from typing import Protocol

from kvquota_api.pod_config import FailurePolicy
from kvquota_sidecar.clock import Clock
from kvquota_sidecar.proxy.answers import Answer
from kvquota_sidecar.proxy.clerk import Clerk
from kvquota_sidecar.proxy.desk import Desk
from kvquota_sidecar.proxy.draining import Drain
from kvquota_sidecar.proxy.head import Fault, Head
from kvquota_sidecar.proxy.identity import Directory, Failure, identify
from kvquota_sidecar.proxy.own_usage import own_usage
from kvquota_sidecar.proxy.reading import Request
from kvquota_sidecar.proxy.refusing import fault_refusal, identity_refusal, refusal_answer
from kvquota_sidecar.proxy.routes import Route, find_route
from kvquota_sidecar.proxy.service import Client, Ends
from kvquota_sidecar.records import LeafValue
from kvquota_sidecar.refusals import Code, Refusal, refuse
from kvquota_sidecar.refusals.headers import admitted_fields


class Admittance(LeafValue, frozen=True):
    """What a head says: `tenant` and `directory` are None where no quota applies."""

    route: Route
    tenant: str | None
    directory: Directory | None


class Standing(Protocol):
    """How this pod stands, as its traffic sees it."""

    @property
    def directory(self) -> Directory | None:
        """Config and identity in force; None while nobody can tell whose a request is."""

    @property
    def drain(self) -> Drain:
        """Whether it is leaving, and since when."""

    def refusal(self) -> Refusal | None:
        """Why no traffic is taken now."""

    def unready(self) -> Refusal | None:
        """Why no traffic should be sent here now."""


class Traffic:
    """The service of the traffic port."""

    def __init__(self, desk: Desk, standing: Standing, *, policy: FailurePolicy, salt_key: bytes, wall: Clock) -> None:
        self._desk = desk
        self._standing = standing
        self._policy = policy
        self._clerk = Clerk(desk, salt_key)
        self._wall = wall

    @property
    def is_leaving(self) -> bool:
        return self._standing.drain.started_at is not None

    def examine(self, head: Head, ends: Ends) -> Answer | Admittance:  # noqa: ARG002 - an address is no proof
        """Look at a head."""
        route = find_route(head.method, head.path)
        if route is None:
            return self._refuse(refuse(Code.ROUTE_NOT_ALLOWED), head, head.path, self._known(head))
        if route.purpose == "Health":
            return Admittance(route, None, None)
        directory = self._standing.directory
        if directory is None:
            return self._examine_unconfigured(head, route)
        tenant = identify(head, directory, self._wall())
        if isinstance(tenant, Failure):
            stranger = identity_refusal(tenant, directory.wanted)
            return self._desk.refuse(stranger, self._desk.name(head), route.path, None)
        if self.is_leaving:
            refusal = self._standing.refusal()
            if refusal is not None:
                return self._refuse(refusal, head, route.path, tenant)
        return Admittance(route, tenant, directory)

    def owner(self, context: Admittance) -> str | None:
        """The tenant, where there are others whom it must leave room."""
        return context.tenant if context.directory is not None and len(context.directory.tenants) > 1 else None

    def serve(self, request: Request, context: Admittance, client: Client) -> None:
        """Answer a request whose head was admitted."""
        purpose, tenant, directory = context.route.purpose, context.tenant, context.directory
        if purpose == "Generate" and tenant is not None and directory is not None:
            self._clerk.take(request, context.route, tenant, directory, client)
        elif purpose == "OwnUsage":
            client.answer(self._own_usage(request.head, tenant))
        elif purpose == "Health" and (unready := self._standing.unready()) is not None:
            client.answer(refusal_answer(unready, context.route.path, self._desk.name(request.head)))
        else:
            self._clerk.pass_on(request, context.route, tenant, directory, client)

    def answer_fault(self, fault: Fault, head: Head | None, context: Admittance | None) -> Answer:
        """The refusal of a request that cannot be read; its tenant is known where its head could be."""
        path, refusal = fault.path if head is None else head.path, fault_refusal(fault)
        if context is None and fault.head is not None:
            return self._refuse(refusal, fault.head, path, self._known(fault.head))
        return self._refuse(refusal, head, path, None if context is None else context.tenant)

    # The inside.

    def _refuse(self, refusal: Refusal, head: Head | None, path: str, tenant: str | None) -> Answer:
        if tenant is not None:
            self._desk.books.count_refusal(tenant, refusal, self._desk.clock())
        return self._desk.refuse(refusal, self._desk.name(head), path, tenant)

    def _known(self, head: Head) -> str | None:
        """The tenant of a request that is refused whoever sends it."""
        directory = self._standing.directory
        tenant = None if directory is None else identify(head, directory, self._wall())
        return None if isinstance(tenant, Failure) else tenant

    def _examine_unconfigured(self, head: Head, route: Route) -> Answer | Admittance:
        refusal = self._standing.refusal()
        if refusal is None and self._policy == "Closed":
            refusal = refuse(Code.NOT_CONFIGURED)
        if refusal is not None:
            return self._desk.refuse(refusal, self._desk.name(head), route.path, None)
        self._desk.tally.passed_unconfigured += route.purpose == "Generate"
        return Admittance(route, None, None)

    def _own_usage(self, head: Head, tenant: str | None) -> Answer:
        room, name = self._desk.room(tenant), self._desk.name(head)
        if room is None or tenant is None:
            return self._desk.refuse(refuse(Code.NOT_CONFIGURED), name, "/v1/usage", tenant)
        mine = self._desk.books.usage_of(tenant, self._desk.clock(), self._wall())
        return Answer(200, own_usage(mine, room), admitted_fields(room) + name.field)
