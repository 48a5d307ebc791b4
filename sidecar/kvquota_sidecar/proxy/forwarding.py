"""What is sent to the engine, as bytes.

Decides which of a client's headers the engine sees. Pure.

Invariants:

1. The engine is named by this program: neither its address nor its Host depends on the request.
2. Headers of one hop, of the body's framing, and all that would choose a tenant, a priority, a session or a rank inside
   the engine are left out, whether written with `-` or `_`. The rank and the priority are then this program's.
3. The body goes out with a Content-Length, whatever framing it came in.
4. The engine is asked not to compress, so that what it says can be counted.
5. A query goes with GET only: no route that generates has one, and what an engine makes of it nobody has accounted for.
6. HEAD goes out as GET: engines refuse it, and an answer to GET ends where its framing says.
"""

from __future__ import annotations

from typing import Final

from kvquota_sidecar.proxy.answers import HOP_BY_HOP, OWN_PREFIX
from kvquota_sidecar.proxy.head import Head, Headers, connection_options

_NOTE: Final = "forwarding"  # of a head
_RANK: Final = b"x-data-parallel-rank"
_PRIORITY: Final = b"x-vllm-priority"
# X-Vllm-Priority beats the body's priority, X-Session-ID and X-data-parallel-rank steer the engine's scheduler.
_STEERING: Final = frozenset({_PRIORITY, b"x-session-id", _RANK, b"x-request-id"})
_TENANT: Final = frozenset({b"x-tenant", b"x-tenant-id", b"tenant", b"tenant-id", b"x-tenant-name", OWN_PREFIX[:-1]})
_FRAMING: Final = frozenset({b"content-length", b"expect", b"host", b"accept-encoding", b"content-encoding"})
_DROPPED: Final = HOP_BY_HOP | _STEERING | _TENANT | _FRAMING


def engine_request(
    head: Head,
    body: bytes,
    authority: bytes,
    request_id: str,
    withheld: frozenset[bytes],
    *,
    rank: int | None = None,
    priority: int | None = None,
) -> bytes:
    """The request as the engine gets it.

    `authority`: the engine's host and port. `withheld`: headers to leave out, in lower case and with `-`. `rank`: the
    data-parallel rank that must take it, `priority`: vLLM's, lower is earlier; None leaves both to the engine.
    """
    start, passed_on = _of_head(head, withheld)
    own = f"x-request-id: {request_id}\r\n"
    if rank is not None:
        own += f"{_RANK.decode()}: {rank}\r\n"
    if priority is not None:
        own += f"{_PRIORITY.decode()}: {priority}\r\n"
    framing = f"content-length: {len(body)}\r\n" if body or head.method == "POST" else ""
    return b"".join((start, b"host: ", authority, b"\r\n", passed_on, f"{own}{framing}\r\n".encode(), body))


def _of_head(head: Head, withheld: frozenset[bytes]) -> tuple[bytes, bytes]:
    """The request line, and the lines of the client's headers: the same for every request with this head."""
    noted: tuple[frozenset[bytes], bytes, bytes] | None = head.notes.get(_NOTE)
    if noted is None or noted[0] is not withheld:
        passed = b"".join(b"%b: %b\r\n" % pair for pair in _passed_on(head.headers, withheld))
        noted = head.notes[_NOTE] = (withheld, _request_line(head), passed)
    return noted[1], noted[2]


def _request_line(head: Head) -> bytes:
    line = f"{head.method} {head.path}" if head.method == "POST" else f"GET {head.target}"
    return f"{line} HTTP/1.1\r\n".encode()


def _passed_on(headers: Headers, withheld: frozenset[bytes]) -> Headers:
    dropped = _DROPPED | withheld | connection_options(headers)
    return tuple(pair for pair in headers if not _is_dropped(pair[0].replace(b"_", b"-"), dropped))


def _is_dropped(name: bytes, dropped: frozenset[bytes]) -> bool:
    return name in dropped or name.startswith(OWN_PREFIX)
