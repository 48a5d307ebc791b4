"""The handlers of kopf: they hand over what they get, nothing else.

kopf swallows what a handler of events raises, so whatever could fail is done elsewhere, by a task that may end the
process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import kopf

from kvquota_api.meta import GROUP, VERSION
from kvquota_operator.reconcile.observed import Kind

LOGIN_AGAIN_SECONDS: Final = 5.0  # a token or a kubeconfig that is being replaced is there again in a moment

Deliver = Callable[[Kind, str | None, dict[str, Any]], None]
Login = Callable[[], Awaitable[kopf.ConnectionInfo]]


@dataclass(frozen=True, slots=True)
class HandlerDeps:
    """`deliver` takes kind, type of event and object, from the thread of kopf. `login` gives fresh credentials."""

    deliver: Deliver
    login: Login


def register(registry: kopf.OperatorRegistry, deps: HandlerDeps) -> None:
    """Add all handlers of the operator to `registry`."""

    @kopf.on.login(registry=registry, backoff=LOGIN_AGAIN_SECONDS)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await deps.login()

    @kopf.on.event(GROUP, VERSION, "modelpools", registry=registry)
    async def pool(event: kopf.RawEvent, **_: Any) -> None:
        deps.deliver("ModelPool", event["type"], dict(event["object"]))

    @kopf.on.event(GROUP, VERSION, "tenantquotas", registry=registry)
    async def quota(event: kopf.RawEvent, **_: Any) -> None:
        deps.deliver("TenantQuota", event["type"], dict(event["object"]))
