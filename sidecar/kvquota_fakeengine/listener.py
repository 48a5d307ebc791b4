"""One address on which an application answers, that can be closed and opened again."""

import os
import socket

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

# A request that is still running when the program ends is cut, as the death of an engine would.
_SHUTDOWN_SECONDS = 0.1


class CannotListenError(OSError):
    """The address cannot be listened on; the text names it and says why."""

    def __init__(self, host: str, port: int, error: OSError) -> None:
        looked_up = isinstance(error, socket.gaierror)
        reason = os.strerror(error.errno) if error.errno and not looked_up else error.strerror or str(error)
        super().__init__(f"cannot listen on {host}:{port}: {reason}")


class Listener:
    """`port` 0 means any free one; once open, `port` is the real one, and stays the same over closing and opening."""

    def __init__(self, app: web.Application, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._busy: set[object] = set()
        app.middlewares.append(_noting_in(self._busy))
        self._runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_SECONDS, access_log=None, keepalive_timeout=3600
        )
        self._site: web.TCPSite | None = None

    async def open(self) -> None:
        """Accept connections; nothing happens if it does already."""
        if self._site is not None:
            return
        if self._runner.server is None:
            await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port, reuse_address=True)
        try:
            await site.start()
        except OSError as error:
            raise CannotListenError(self.host, self.port, error) from error
        self._site = site
        self.port = int(self._runner.addresses[0][1])

    async def refuse(self) -> None:
        """Stop accepting; connections without a request in progress are closed, the others once it is over."""
        if self._site is not None:
            await self._site.stop()
            self._site = None
        for connection in self._connections():
            if connection in self._busy:
                connection.close()
            else:
                connection.force_close()

    async def die(self) -> None:
        """Stop accepting and cut every connection where it stands."""
        await self.refuse()
        for connection in self._connections():
            if connection.transport is not None:
                connection.transport.abort()

    async def cleanup(self) -> None:
        await self._runner.cleanup()
        self._site = None

    def _connections(self) -> list[web.RequestHandler]:
        return self._runner.server.connections if self._runner.server is not None else []


def _noting_in(busy: set[object]) -> Middleware:
    """Keep the connections whose request is being answered in `busy`."""

    @web.middleware
    async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
        busy.add(request.protocol)
        try:
            return await handler(request)
        finally:
            busy.discard(request.protocol)

    return note
