"""A request that can be charged to a tenant, as it came."""

from __future__ import annotations

import msgspec

from kvquota_sidecar.estimate.shape import Shape
from kvquota_sidecar.proxy.identity import Directory
from kvquota_sidecar.proxy.reading import Request
from kvquota_sidecar.proxy.request_ids import Name
from kvquota_sidecar.proxy.routes import Route
from kvquota_sidecar.proxy.service import Client


class Wish(msgspec.Struct, frozen=True):
    """`shape` is that of the request's body."""

    name: Name
    request: Request
    route: Route
    tenant: str
    directory: Directory
    shape: Shape
    client: Client
