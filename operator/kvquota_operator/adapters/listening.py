"""Servers of the operator: what is served, where, and for how long."""

from __future__ import annotations

import errno
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from kvquota_operator.settings import Address


class ListenError(RuntimeError):
    """The address cannot be listened on; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Place:
    """`purpose` and `flag`: what is served there, and what gives another address, for the one who reads an error."""

    address: Address
    purpose: str
    flag: str


@asynccontextmanager
async def serving(runner: web.AppRunner, place: Place, context: ssl.SSLContext | None = None) -> AsyncIterator[None]:
    """Serve while the context lasts. Raises ListenError."""
    await runner.setup()
    try:
        await _listen(runner, place, context)
        yield
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, place: Place, context: ssl.SSLContext | None) -> None:
    host, port = place.address.host, place.address.port
    try:
        await web.TCPSite(runner, host or None, port, ssl_context=context).start()
    except OSError as error:
        raise ListenError(
            f"cannot listen on {host}:{port} for {place.purpose} ({error.strerror or error}): {_way_out(error, place)}"
        ) from error


def _way_out(error: OSError, place: Place) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"end what has the port, or give {place.flag} another address"
    return f"give {place.flag} an address of this machine, or a port alone, as in :{place.address.port}"
