"""A request that can be charged to a tenant, as it came, and the counting of its prompts."""

from __future__ import annotations

from kvquota_sidecar.estimate.shape import Shape
from kvquota_sidecar.proxy.counting import Counting, Done, Tokenizer
from kvquota_sidecar.proxy.identity import Directory
from kvquota_sidecar.proxy.reading import Request
from kvquota_sidecar.proxy.request_ids import Name
from kvquota_sidecar.proxy.routes import Route
from kvquota_sidecar.proxy.service import Client
from kvquota_sidecar.records import Value


class Wish(Value, frozen=True):
    """`shape` is that of the request's body."""

    name: Name
    request: Request
    route: Route
    tenant: str
    directory: Directory
    shape: Shape
    client: Client


def have_counted(tokenizer: Tokenizer, wish: Wish, done: Done) -> Counting:
    """Have its prompts counted; `done` may be called before this returns."""
    engine = wish.directory.config.engine_type
    return tokenizer.count(wish.tenant, engine, wish.route.path, wish.request.body, shape=wish.shape, done=done)
