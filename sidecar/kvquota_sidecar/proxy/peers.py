"""What the sockets of clients are asked and told beyond what a transport offers."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, Final

# A peer whose cable is cut is found by these. Where the last is set it ends the keepalive too, and counts from the last
# byte that was acknowledged: 51 s with nothing to send, 55 s with something (measured with a cable that was pulled).
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 45_000))


def host(transport: asyncio.BaseTransport, which: str) -> str:
    """The address of an end, `peername` or `sockname`, without its port; "" on a unix socket."""
    address: Any = transport.get_extra_info(which)
    return str(address[0]) if isinstance(address, tuple) else ""


def watch(transport: asyncio.BaseTransport) -> None:
    """Let the kernel find out whether the peer is still there."""
    sock: Any = transport.get_extra_info("socket")
    if sock is None or sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def has_reset(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has; a transport that has seen the end of what it reads does not tell."""
    sock: Any = transport.get_extra_info("socket")
    return sock is not None and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0


def end_by_reset(transport: asyncio.BaseTransport) -> None:
    """Make the next close an error to the peer, not an end."""
    sock: Any = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
