"""The plain Python way to write the sidecar, as a peer: an aiohttp server that forwards with an aiohttp client.

usage: aiohttp_proxy.py PORT      (UPSTREAM=http://host:port in the environment; uvloop is used when installed)
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "upgrade"),
        *("transfer-encoding", "content-length", "host"),
    }
)
MAX_BODY_BYTES = 64 << 20
UPSTREAM = web.AppKey("upstream", ClientSession)


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}


async def forward(request: web.Request) -> web.StreamResponse:
    engine = request.app[UPSTREAM]
    body, headers = await request.read(), end_to_end(request.headers)
    async with engine.request(request.method, request.raw_path, data=body, headers=headers) as answer:
        headers = end_to_end(answer.headers)
        if answer.content_length is not None:
            return web.Response(status=answer.status, headers=headers, body=await answer.read())
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        async for data in answer.content.iter_any():
            await response.write(data)
        await response.write_eof()
        return response


async def serve(port: int, upstream: str) -> None:
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_route("*", "/{path:.*}", forward)
    connector = TCPConnector(limit=0)
    async with ClientSession(upstream, connector=connector, timeout=ClientTimeout(), auto_decompress=False) as session:
        app[UPSTREAM] = session
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
        await asyncio.Event().wait()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop  # noqa: PLC0415 - a peer may run in an environment without it
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def main() -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(int(sys.argv[1]), os.environ["UPSTREAM"]))


if __name__ == "__main__":
    main()
