"""An HTTP server in this process that stands for another program: one handler answers whatever it is asked."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from testcluster.processes import free_port

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler, **more: Any) -> AsyncIterator[int]:
    """The port of 127.0.0.1 on which it listens; `more` is for aiohttp's AppRunner."""
    application = web.Application(client_max_size=2**24)
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, **more)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield port
    finally:
        await runner.cleanup()


def answering(status: int = 200, body: bytes = b"", **headers: str) -> Handler:
    """The same to everything. An underscore in the name of a header is a dash."""

    async def handler(_: web.Request) -> web.Response:
        return web.Response(
            status=status, body=body, headers={name.replace("_", "-"): v for name, v in headers.items()}
        )

    return handler


async def hanging(_: web.Request) -> web.Response:
    """No answer, and the connection stays open."""
    await asyncio.sleep(3600)
    raise AssertionError


async def hanging_up(request: web.Request) -> web.Response:
    """No answer: the connection breaks."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()
