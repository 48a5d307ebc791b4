"""Requests of the benchmark itself to the API server: plain JSON, as system:masters."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import msgspec

from testcluster.access import Access

AT_ONCE: Final = 16
MERGE: Final = {"Content-Type": "application/merge-patch+json"}
Object = dict[str, Any]


class Calls:
    """One API server. Every method raises RuntimeError with the answer where that is no success."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def create(self, path: str, body: Object) -> Object:
        return await self._request("POST", path, body, {})

    async def merge(self, path: str, body: Object) -> Object:
        return await self._request("PATCH", path, body, MERGE)

    async def get(self, path: str) -> Object:
        return await self._request("GET", path, None, {})

    async def watch(self, path: str, version: str) -> AsyncIterator[Object]:
        """Events of a collection after a resourceVersion, for as long as the server keeps the watch."""
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "3600"}
        async with self._session.get(self._url + path, params=query) as answer:
            async for line in answer.content:
                yield msgspec.json.decode(line)

    async def _request(self, method: str, path: str, body: Object | None, headers: dict[str, str]) -> Object:
        data = None if body is None else msgspec.json.encode(body)
        kind = headers or {"Content-Type": "application/json"}
        async with self._session.request(method, self._url + path, data=data, headers=kind) as answer:
            content = await answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.status} {content.decode()[:500]}")
            found: Object = msgspec.json.decode(content)
            return found


@asynccontextmanager
async def calls(access: Access) -> AsyncIterator[Calls]:
    """Calls that end with their context."""
    context = ssl.create_default_context(cafile=str(access.ca))
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    headers = {"Authorization": f"Bearer {access.token}"}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=timeout, read_bufsize=2**22
    ) as session:
        yield Calls(session, access.url)


async def all_of(works: Iterable[Any]) -> None:
    """Await them, some at a time."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(work: Any) -> None:
        async with turn:
            await work

    async with asyncio.TaskGroup() as tasks:
        for work in works:
            tasks.create_task(one(work))
