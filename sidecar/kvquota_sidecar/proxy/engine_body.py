"""The body as the engine gets it: the client's own, byte for byte, but for the fields that are this program's.

Decides what these hold. Pure.

Invariants:

1. No field by which a client would steer the engine's scheduler or cache is passed on.
2. A stream says how many tokens it had, also where the client did not ask for that.
3. Where the client set no limit and the books count on one that the engine would pass, it stands in the body.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.edit import edited
from kvquota_sidecar.estimate.salt import engine_salt
from kvquota_sidecar.estimate.shape import Engine, Shape
from kvquota_sidecar.estimate.steering import STEERING, WITHOUT_STEERING, engine_priority
from kvquota_sidecar.proxy.identity import Directory

_SALTED_ENGINES: Final = frozenset({"vLLM", "SGLang"})  # that keep their prefix cache apart by `cache_salt`
_ASKED_FOR_USAGE: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
_WITHOUT_PRIORITY: Final = frozenset({"/v1/messages"})  # routes whose body has no such field
_CHATS: Final = frozenset({"/v1/chat/completions", "/v1/chat/completions/batch"})
_USAGE_ASKED: Final = b'{"include_usage":true}'
MAX_SALTS: Final = 10_000  # kept: one for each tenant, mostly; 2 MiB


class Salts:
    """The `cache_salt` of a tenant's requests under one config and identity, as JSON text; `key`: the pool's secret."""

    def __init__(self, directory: Directory, key: bytes) -> None:
        self.directory = directory
        self._key = key
        self._are_taken = directory.config.engine_type in _SALTED_ENGINES
        self._known: dict[tuple[str, str], bytes | None] = {}

    def salt(self, tenant: str, client_salt: str) -> bytes | None:
        """None: the engine gets none."""
        if not self._are_taken:
            return None
        asked = (tenant, client_salt)
        if asked not in self._known:
            if len(self._known) >= MAX_SALTS:
                self._known.clear()
            self._known[asked] = self._derived(tenant, client_salt)
        return self._known[asked]

    def _derived(self, tenant: str, client_salt: str) -> bytes | None:
        salt = engine_salt(self._key, self.directory.config.cache_isolation, tenant, client_salt)
        return None if salt is None else msgspec.json.encode(salt)


def lacks_usage(path: str, shape: Shape) -> bool:
    """Whether the stream would end without the engine's own count, which only two routes have to be asked for."""
    return shape.stream and not shape.include_usage and path in _ASKED_FOR_USAGE


def priority_of(shape: Shape, tenant: str, directory: Directory, *, protected: bool) -> int | None:
    """Its place in the engine's queue, lower is earlier; None where nobody knows how the engine has one."""
    if directory.config.engine_type != "vLLM":
        return None
    own = directory.priority(tenant)
    return engine_priority(protected=protected, tenant_priority=own, asked=shape.priority)


def engine_body(
    body: bytes,
    path: str,
    shape: Shape,
    salt: bytes | None,
    priority: int | None,
    *,
    limit: Tokens | None = None,
    engine: Engine = "vLLM",
) -> bytes:
    """`body` of a request for `path`, with this program's fields in place of the client's.

    `limit`: of its output, to be set for `engine`; None where the client has set one, or needs none.
    """
    place = None if priority is None or path in _WITHOUT_PRIORITY else b"%d" % priority
    changes: dict[str, bytes | None] = {"priority": place, "cache_salt": salt}
    if lacks_usage(path, shape):
        changes["stream_options"] = _USAGE_ASKED
    if limit is not None:
        changes[_limit_field(path, engine)] = b"%d" % limit
    is_plain = STEERING.isdisjoint(shape.fields)
    return edited(body, shape.fields, changes if is_plain else {**WITHOUT_STEERING, **changes})


def _limit_field(path: str, engine: Engine) -> str:
    """What limits the output of a route: vLLM takes the new name of a chat first, all others know the old one."""
    if path in _CHATS:
        return "max_completion_tokens" if engine == "vLLM" else "max_tokens"
    return "max_output_tokens" if path == "/v1/responses" else "max_tokens"
