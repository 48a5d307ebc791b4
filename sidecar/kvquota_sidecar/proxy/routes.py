"""Which requests there are. Everything else is refused.

Decides what a method and a path mean. Pure.

Invariants:

1. The match is exact: no prefix, no pattern, no trailing slash, no other method; so the engine's routes for its
   administrators (/pause, /reset_prefix_cache, /inference/v1/*, ...) are closed without being named. HEAD is open
   where GET is.
2. Every route that generates is accounted for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from kvquota_sidecar.proxy.metering import Dialect

Purpose = Literal["Generate", "Read", "Health", "OwnUsage"]


@dataclass(frozen=True, slots=True)
class Route:
    """`dialect`: in which words its answers speak of tokens, and its errors of what went wrong."""

    method: str
    path: str
    purpose: Purpose
    dialect: Dialect = "OpenAI"


_ROUTES: Final = (
    Route("POST", "/v1/chat/completions", "Generate"),
    Route("POST", "/v1/completions", "Generate"),
    Route("POST", "/v1/responses", "Generate", "Responses"),
    Route("POST", "/v1/messages", "Generate", "Anthropic"),
    Route("GET", "/v1/models", "Read"),
    Route("GET", "/v1/usage", "OwnUsage"),
    Route("GET", "/health", "Health"),
)
_BY_LINE: Final = {(route.method, route.path): route for route in _ROUTES}
PATHS: Final = frozenset(route.path for route in _ROUTES)


def find_route(method: str, path: str) -> Route | None:
    """The route of a request, or None: `route_not_allowed`."""
    return _BY_LINE.get(("GET" if method == "HEAD" else method, path))
