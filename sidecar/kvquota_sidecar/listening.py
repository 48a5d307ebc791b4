"""The sockets that a sidecar listens on: bound by itself, or by the supervisor before it."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from kvquota_sidecar.settings import Bind, Settings

BACKLOG: Final = 4096  # connections that wait while a child of the supervisor starts; the kernel's usual upper bound

Sockets = tuple[socket.socket, ...]


@dataclass(frozen=True, slots=True)
class Listeners:
    """Of each port: one socket for each address that its host has. They listen already."""

    traffic: Sockets
    admin: Sockets

    @classmethod
    def bound(cls, settings: Settings) -> Self:
        """Bind both ports. Raises OSError where one cannot be had; then neither is kept."""
        traffic = _bound(settings.listen)
        try:
            return cls(traffic, _bound(settings.admin))
        except OSError:
            _close(traffic)
            raise

    @classmethod
    def inherited(cls, descriptors: Mapping[str, Sequence[int]]) -> Self:
        """Those of `descriptors`, in another process."""
        traffic, admin = (tuple(socket.socket(fileno=each) for each in descriptors[port]) for port in _PORTS)
        return cls(traffic, admin)

    def handed_on(self) -> dict[str, list[int]]:
        """Their descriptors, open across an exec. These sockets are of no use any more."""
        for each in (*self.traffic, *self.admin):
            each.set_inheritable(True)
        return {port: [each.detach() for each in sockets] for port, sockets in zip(_PORTS, self._all(), strict=True)}

    def close(self) -> None:
        """Listen no more."""
        for sockets in self._all():
            _close(sockets)

    def _all(self) -> tuple[Sockets, Sockets]:
        return self.traffic, self.admin


_PORTS: Final = ("traffic", "admin")


def address(sockets: Sockets) -> Bind:
    """What the first of them is bound to."""
    host, port = sockets[0].getsockname()[:2]
    return Bind(host, port)


def written(bind: Bind) -> str:
    """HOST:PORT, as it stands in a URL: an IPv6 address in brackets."""
    return f"[{bind.host}]:{bind.port}" if ":" in bind.host else f"{bind.host}:{bind.port}"


def _bound(bind: Bind) -> Sockets:
    """The port is never shared with another program (SO_REUSEPORT): half of the requests would pass the quota by."""
    found = socket.getaddrinfo(bind.host or None, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, *_, where in dict.fromkeys(found):
            with suppress(_NoSuchFamilyError):
                sockets.append(_listening(family, where))
    except OSError:
        _close(sockets)
        raise
    if not sockets:
        raise OSError(errno.EAFNOSUPPORT, f"cannot listen on {bind.host}: this machine has no such addresses")
    return tuple(sockets)


class _NoSuchFamilyError(Exception):
    """The machine does without IPv6, or without IPv4."""


def _listening(family: int, where: tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]) -> socket.socket:
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise _NoSuchFamilyError from error
    try:
        sock.settimeout(0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(where)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        said = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(error.errno, f"cannot listen on {where[0]!s}, port {where[1]!s}: {said}") from error
    return sock


def _close(sockets: Sequence[socket.socket]) -> None:
    for each in sockets:
        each.close()
