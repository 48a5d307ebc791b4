"""The fields of a body by which a client would steer the engine's scheduler and cache, or hide what it makes.

Decides which of them are this program's own, and the engine priority of a request. Pure.

Invariants:

1. What is guaranteed comes before all that is not, then the tenant's priority counts, then the client's own wish.
2. A client can only make its requests later, and only among those of its own tenant's priority.
3. The number is what vLLM reads: lower is earlier, within 64 bits with a sign (`priority`, and X-Vllm-Priority, which
   beats it). Other engines read it otherwise, or not at all.

It does not know which requests are guaranteed, nor what a tenant's priority is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# Taken out of every body: the priority; the arguments of the engine's plugins, which may name a tenant or a transfer of
# blocks; the salt of the prefix cache; the session, which the engine keeps blocks for (it beats X-Session-ID); how
# many tokens are held back for one frame, as the frames show how far the output has grown; the name of the request, by
# which it can be told from or taken for another tenant's (vLLM 0.32: `request_id` of all routes, which a response takes
# before X-Request-Id; SGLang: `rid`); the rank that runs it and more salt of the cache (SGLang; by its documentation).
WITHOUT_STEERING: Final[Mapping[str, None]] = MappingProxyType(
    dict.fromkeys(
        (
            *("priority", "vllm_xargs", "cache_salt", "session_id", "stream_interval", "request_id", "rid"),
            *(
                "data_parallel_rank",
                "data_parallel_rank_decode",
                "routed_dp_rank",
                "disagg_prefill_dp_rank",
                "extra_key",
            ),
        )
    )
)
STEERING: Final = frozenset(WITHOUT_STEERING)
HIGHEST_PRIORITY: Final = 1000  # of a tenant
_WISHES: Final = 2**20  # how many steps a client may put itself back by; the most of them count as the last
_PLAIN_NUMBER: Final = re.compile(rb"[1-9][0-9]*")


def engine_priority(*, protected: bool, tenant_priority: int, asked: bytes = b"") -> int:
    """0 or more; lower is earlier. `tenant_priority`: 0 to 1000, higher is more important.

    `protected`: the request is guaranteed. `asked`: the JSON text of the client's own `priority`, empty where it has
    none. What is no whole number above 0 asks for nothing: it would be earlier, or the engine would not take it.
    """
    steps = HIGHEST_PRIORITY - tenant_priority + (0 if protected else HIGHEST_PRIORITY + 1)
    return steps * _WISHES + _put_back(asked)


def _put_back(asked: bytes) -> int:
    """By how many steps, 0 to _WISHES - 1."""
    if _PLAIN_NUMBER.fullmatch(asked) is None:
        return 0
    return _WISHES - 1 if len(asked) > len(str(_WISHES)) else min(int(asked), _WISHES - 1)
