"""What is sent to the engine, as bytes.

Decides which of a client's headers the engine sees. Pure.

Invariants:

1. The engine is named by this program: neither its address nor its Host depends on the request.
2. Headers of one hop, of the body's framing, and all that would choose a tenant, a priority, a session or a rank inside
   the engine are left out, whether written with `-` or `_`.
3. The body goes out with a Content-Length, whatever framing it came in.
4. The engine is asked not to compress, so that what it says can be counted.
5. A query goes with GET only: no route that generates has one, and what an engine makes of it nobody has accounted for.
6. HEAD goes out as GET: engines refuse it, and an answer to GET ends where its framing says.
"""

from __future__ import annotations

from typing import Final

from kvquota_sidecar.proxy.answers import HOP_BY_HOP, OWN_PREFIX
from kvquota_sidecar.proxy.head import Head, Headers, connection_options

# X-Vllm-Priority beats the body's priority, X-Session-ID and X-data-parallel-rank steer the engine's scheduler.
_STEERING: Final = frozenset({b"x-vllm-priority", b"x-session-id", b"x-data-parallel-rank", b"x-request-id"})
_TENANT: Final = frozenset({b"x-tenant", b"x-tenant-id", b"tenant", b"tenant-id", b"x-tenant-name", OWN_PREFIX[:-1]})
_FRAMING: Final = frozenset({b"content-length", b"expect", b"host", b"accept-encoding", b"content-encoding"})
_DROPPED: Final = HOP_BY_HOP | _STEERING | _TENANT | _FRAMING


def engine_request(head: Head, body: bytes, authority: bytes, request_id: str, withheld: frozenset[bytes]) -> bytes:
    """The request as the engine gets it. `authority`: the engine's host and port; `withheld`: headers to leave out."""
    lines = [_request_line(head), b"host: " + authority]
    lines += [name + b": " + value for name, value in _passed_on(head.headers, withheld)]
    lines.append(b"x-request-id: " + request_id.encode())
    if body or head.method == "POST":
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _request_line(head: Head) -> bytes:
    line = f"{head.method} {head.path}" if head.method == "POST" else f"GET {head.target}"
    return f"{line} HTTP/1.1".encode()


def _passed_on(headers: Headers, withheld: frozenset[bytes]) -> Headers:
    dropped = _DROPPED | withheld | connection_options(headers)
    return tuple(pair for pair in headers if not _is_dropped(pair[0].replace(b"_", b"-"), dropped))


def _is_dropped(name: bytes, dropped: frozenset[bytes]) -> bool:
    return name in dropped or name.startswith(OWN_PREFIX)
