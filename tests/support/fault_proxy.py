"""A proxy in front of an API server that answers some requests itself, loses answers, ends watches and silences them.

Plain HTTP on this side, so that a client reaches it with the same token and no certificate.
"""

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal

import aiohttp
from aiohttp import web

from http_stand_in import hanging_up, serving
from kvquota_operator.adapters.api import resource_of
from testcluster.apiserver import ApiServer

Fault = int | Literal["cut", "answer lost"]
"""A status that is answered, a connection that breaks at once, or one that breaks when the server has done it."""

_HOP_BY_HOP = frozenset({"host", "connection", "transfer-encoding", "content-length", "content-encoding"})


Call = tuple[str, str]
"""A kind of request: the method, or LIST or WATCH, and the resource."""


class FaultProxy:
    """`armed` faults hit the next requests of every kind. `met` counts who was hit.

    `apart`: a namespace whose resources are kinds of their own, called NAMESPACE/RESOURCE.
    """

    def __init__(self, server: ApiServer, *, apart: str = "") -> None:
        self.met: Counter[Call] = Counter()
        self.watches = 0
        self._server = server
        self._apart = apart
        self._fault: Fault = 503
        self._left: Counter[Call] = Counter()
        self._first: dict[Call, Fault] = {}
        self._each = 0
        self._methods: frozenset[str] = frozenset()
        self._silent = asyncio.Event()
        self._open: set[asyncio.Timeout] = set()

    def arm(self, fault: Fault, each: int, *methods: str, first: Mapping[Call, Fault] | None = None) -> None:
        """The next `each` requests of every kind meet `fault`; where methods are given, only of these.

        `first`: what the very next one of a kind meets before that, which is not counted.
        """
        self._fault, self._each, self._methods = fault, each, frozenset(methods)
        self._first = dict(first or {})
        self._left.clear()
        self.met.clear()

    def end_watches(self) -> None:
        """The watches that are open end, as the API server ends each after a while."""
        ended, self._open = self._open, set()
        for watch in ended:
            watch.reschedule(asyncio.get_running_loop().time())

    def silence(self) -> None:
        """The watches that are open stay open, and nothing comes of them any more; new ones are well."""
        self._silent.set()
        self._silent = asyncio.Event()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Its address."""
        context = ssl.create_default_context(cafile=str(self._server.ca))
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

            async def handler(request: web.Request) -> web.StreamResponse:
                return await self._handle(request, session)

            async with serving(handler, handler_cancellation=True) as port:
                yield f"http://127.0.0.1:{port}"

    async def _handle(self, request: web.Request, session: aiohttp.ClientSession) -> web.StreamResponse:
        kind = self._kind(request)
        watch, fault = kind[0] == "WATCH", self._meets(kind)
        if isinstance(fault, int):
            return _refusal(fault)
        if fault == "cut" or (fault == "answer lost" and watch):  # a watch has no end at which to lose its answer
            return await hanging_up(request)
        headers = {name: each for name, each in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        url = self._server.url + request.raw_path
        timeout = aiohttp.ClientTimeout(total=None)
        async with session.request(
            request.method, url, headers=headers, data=await request.read() or None, timeout=timeout
        ) as answer:
            if fault == "answer lost":
                await answer.read()
                return await hanging_up(request)
            return await self._pass_on(request, answer, watch=watch)

    def _kind(self, request: web.Request) -> Call:
        resource, method = resource_of(request.path), request.method
        if method == "GET" and request.path.endswith(f"/{resource}"):
            method = "WATCH" if request.query.get("watch") in ("true", "1") else "LIST"
        is_apart = self._apart and f"/namespaces/{self._apart}/" in request.path
        return method, f"{self._apart}/{resource}" if is_apart else resource

    def _meets(self, kind: Call) -> Fault | None:
        if kind in self._first:
            return self._first.pop(kind)
        if self._left[kind] >= self._each or (self._methods and kind[0] not in self._methods):
            return None
        self._left[kind] += 1
        self.met[kind] += 1
        return self._fault

    async def _pass_on(
        self, request: web.Request, answer: aiohttp.ClientResponse, *, watch: bool
    ) -> web.StreamResponse:
        passed = {name: each for name, each in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
        response = web.StreamResponse(status=answer.status, headers=passed)
        await response.prepare(request)
        if watch:
            return await self._watched(answer, response)
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
        return response

    async def _watched(self, answer: aiohttp.ClientResponse, response: web.StreamResponse) -> web.StreamResponse:
        silent = self._silent
        self.watches += 1
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as end, self._counted_as_open(end):
                async for chunk in answer.content.iter_any():
                    if silent.is_set():
                        await asyncio.Event().wait()
                    await response.write(chunk)
        return response

    @asynccontextmanager
    async def _counted_as_open(self, watch: asyncio.Timeout) -> AsyncIterator[None]:
        self._open.add(watch)
        try:
            yield
        finally:
            self._open.discard(watch)


def _refusal(status: int) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "message": "injected"}
    headers = {"Retry-After": "1"} if status == 429 else {}
    return web.Response(status=status, text=json.dumps(body), content_type="application/json", headers=headers)


def proxied(kubeconfig: Path, url: str, folder: Path) -> Path:
    """The kubeconfig with the proxy's address in place of the API server's."""
    document = json.loads(kubeconfig.read_text())
    document["clusters"] = [{"name": "test", "cluster": {"server": url}}]
    path = folder / "kubeconfig-proxied"
    path.write_text(json.dumps(document))
    return path
