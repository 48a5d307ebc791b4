"""Requests to the API server as plain JSON, and the one mapping of its failures to errors of the port.

The generated classes for objects are not used: what the operator reads of a pod is a tenth of it, and to build the
rest costs more than everything else that is done with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import msgspec
from kubernetes.aio.client import ApiClient

from kvquota_operator.ports import (
    ClusterError,
    ClusterTimeoutError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    NotLeadingError,
    NotServedError,
    RefusedError,
    TerminatingError,
    ThrottledError,
    UnreachableError,
    VanishedError,
)
from kvquota_operator.reading.decoding import decode

CORE: Final = "/api/v1"
FIELD_MANAGER: Final = "kvquota-operator"
Json = dict[str, Any]

REQUEST_TIMEOUT_SECONDS: Final = 10.0  # a healthy API server answers in 0.1 s; a pass must not hang on a sick one
REQUESTS_AT_ONCE: Final = 32  # below what API priority and fairness gives to one service account
LIST_CHUNK: Final = 500  # objects in one answer: what kubectl asks for
WATCH_SERVER_SECONDS: Final = 300  # the server ends a watch after this time, so that a forgotten one is not kept
INACTIVITY_SECONDS: Final = 70.0  # bookmarks come every 60 s; a watch without one is dead however open it looks
DONE: Final = "Done"
LONGEST_LINE_BYTES: Final = 8 * 2**20  # etcd takes objects up to 1.5 MiB; as JSON they are at most a few times that

_BY_STATUS: Final[Mapping[int, type[ClusterError]]] = {
    400: RefusedError, 401: ForbiddenError, 403: ForbiddenError, 404: VanishedError, 408: ClusterTimeoutError,
    409: ConflictError, 410: ExpiredError, 413: RefusedError, 415: RefusedError, 422: RefusedError,
    429: ThrottledError, 504: ClusterTimeoutError,
}  # fmt: skip
_TERMINATING: Final = "NamespaceTerminating"  # NamespaceTerminatingCause of k8s.io/api/core/v1


class Api:
    """One API server. All methods raise ClusterError; `path` starts with a slash and is already quoted.

    `may_write` is asked in the moment before a write is sent, which is refused with NotLeadingError where it says no.
    `counted` is told every request: its method (or WATCH), the resource, and DONE or the reason of its failure.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        may_write: Callable[[], bool] = lambda: True,
        counted: Callable[[str, str, str], None] = lambda *_: None,
    ) -> None:
        self._client = client
        self._may_write = may_write
        self._counted = counted
        self._at_once = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def get(self, path: str, *, timeout_seconds: float = REQUEST_TIMEOUT_SECONDS) -> Json:
        return await self._request("GET", path, timeout_seconds=timeout_seconds)

    async def create(self, path: str, body: Json) -> Json:
        """POST. Raises ConflictError where it exists."""
        return await self._request("POST", path, query=[("fieldManager", FIELD_MANAGER)], body=body)

    async def apply(self, path: str, body: Json) -> Json:
        """Server-side apply: the fields of `body` become ours, whoever had them."""
        query = [("fieldManager", FIELD_MANAGER), ("force", "true")]
        return await self._request("PATCH", path, query=query, body=body, content_type="application/apply-patch+yaml")

    async def merge(self, path: str, body: Json) -> Json:
        """JSON merge patch; with metadata.resourceVersion in `body` it raises ConflictError where that is not so."""
        query = [("fieldManager", FIELD_MANAGER)]
        return await self._request("PATCH", path, query=query, body=body, content_type="application/merge-patch+json")

    async def replace(self, path: str, body: Json) -> Json:
        """PUT; with metadata.resourceVersion in `body` it raises ConflictError where that is not so."""
        return await self._request("PUT", path, query=[("fieldManager", FIELD_MANAGER)], body=body)

    async def list(self, path: str, selector: str = "") -> tuple[list[Json], str]:
        """All objects of a collection and the resourceVersion at which they were so."""
        items: list[Json] = []
        version = ""
        async for page, version in self.pages(path, selector):  # noqa: B007 - that of the last page is returned
            items.extend(page)
        return items, version

    async def pages(
        self, path: str, selector: str = "", limit: int = LIST_CHUNK
    ) -> AsyncIterator[tuple[Sequence[Json], str]]:
        """The same in parts of `limit` objects: each is asked for only when it is wanted."""
        query = [("limit", str(limit))] + ([("labelSelector", selector)] if selector else [])
        token = ""
        while True:
            answer = await self._request("GET", path, query=[*query, ("continue", token)] if token else query)
            yield answer.get("items") or [], answer["metadata"]["resourceVersion"]
            token = answer["metadata"].get("continue") or ""
            if not token:
                return

    async def version_of(self, path: str, selector: str = "") -> str:
        """The resourceVersion at which a collection is now."""
        async for _, version in self.pages(path, selector, limit=1):
            return version
        raise UnreachableError(f"what answers {path} is no API server: it lists nothing")

    async def watch(self, path: str, version: str, selector: str = "") -> AsyncIterator[Json]:
        """Events of a collection after `version`, bookmarks too, until the server ends the watch.

        Raises ClusterTimeoutError where nothing came for longer than bookmarks are apart.
        """
        query = [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", str(WATCH_SERVER_SECONDS)),
        ]
        query += [("labelSelector", selector)] if selector else []
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_SECONDS, sock_read=INACTIVITY_SECONDS)
        try:
            async with await self._send("GET", path, query=query, timeout=timeout) as response:
                if response.status != 200:
                    raise _refusal(response, await _body(response))
                self._counted("WATCH", resource_of(path), DONE)
                async for line in _lines(response.content):
                    yield decode(line)
        except msgspec.DecodeError as error:
            raise UnreachableError(f"what answers {path} is no API server: {error}") from error
        except (TimeoutError, aiohttp.ClientError) as error:
            raise _broken(path, error) from error

    async def _request(self, method: str, path: str, **how: Any) -> Json:
        try:
            content = await self._exchange(method, path, **how)
        except ClusterError as error:
            self._counted(method, resource_of(path), error.reason)
            raise
        self._counted(method, resource_of(path), DONE)
        return content

    async def _exchange(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Json | None = None,
        content_type: str = "application/json",
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    ) -> Json:
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        try:
            async with (
                self._at_once,
                await self._send(
                    method, path, query=query, body=body, content_type=content_type, timeout=timeout
                ) as response,
            ):
                content = await _body(response)
                if response.status >= 300:
                    raise _refusal(response, content)
                if not content:
                    raise UnreachableError(f"what answers {path} is no API server: its answer is no JSON object")
                return content
        except (TimeoutError, aiohttp.ClientError) as error:
            raise _broken(path, error) from error

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]],
        body: Json | None = None,
        content_type: str = "application/json",
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - handed to the client, which has the reason for it
    ) -> aiohttp.ClientResponse:
        request = await self._client.param_serialize(
            method,
            path,
            query_params=list(query),
            header_params={"Content-Type": content_type, "Accept": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
        )
        if method != "GET" and not self._may_write():
            raise NotLeadingError("another replica leads, or may lead soon: this one does not write")
        answer = await self._client.call_api(*request, _request_timeout=timeout)
        response: aiohttp.ClientResponse = answer.response
        return response


def object_path(base: str, namespace: str, plural: str, name: str = "", subresource: str = "") -> str:
    """Path of a namespaced collection or object: `base` is /api/v1 or /apis/GROUP/VERSION; no namespace means all."""
    parts = ["namespaces", quote(namespace, safe="")] if namespace else []
    parts += [plural, *([quote(name, safe="")] if name else []), *([subresource] if subresource else [])]
    return "/".join([base, *parts])


def resource_of(path: str) -> str:
    """What a path is about: the plural, with the subresource if there is one; empty where it is about no resource."""
    parts = path.split("/")[3 if path.startswith(f"{CORE}/") else 4 :]
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    return "/".join([*parts[:1], *parts[2:]])


async def find(reading: Awaitable[Json]) -> Json | None:
    """The object that is read; None where it is not there. Raises ClusterError, also where its path is not known."""
    try:
        return await reading
    except NotServedError:
        raise
    except VanishedError:
        return None


async def _body(response: aiohttp.ClientResponse) -> Json:
    """The answer as an object; what is no JSON object (a proxy's error page) is an empty one."""
    try:
        content = decode(await response.read())
    except msgspec.DecodeError:
        return {}
    return content if isinstance(content, dict) else {}


def _refusal(response: aiohttp.ClientResponse, content: Json) -> ClusterError:
    kind = _BY_STATUS.get(response.status, UnreachableError)
    if kind is VanishedError and content.get("kind") != "Status":
        kind = NotServedError
    if kind is ForbiddenError and _TERMINATING in _causes(content):
        kind = TerminatingError
    message = str(content.get("message") or response.reason or "no message")
    return kind(f"{response.status}: {message}", retry_after=_retry_after(response.headers.get("Retry-After")))


def _causes(content: Json) -> set[str]:
    """Why, in the words that the API server has for programs."""
    details = content.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    listed = causes if isinstance(causes, list) else ()
    return {str(each.get("reason")) for each in listed if isinstance(each, dict)}


def _retry_after(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdecimal() else None


def _broken(path: str, error: Exception) -> ClusterError:
    if isinstance(error, TimeoutError):
        return ClusterTimeoutError(f"the API server did not answer in time ({path})")
    return UnreachableError(f"the API server cannot be reached ({path}): {str(error) or type(error).__name__}")


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of a stream, of any length up to the bound. Raises UnreachableError beyond it."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line
        if len(rest) > LONGEST_LINE_BYTES:
            raise UnreachableError(f"a watch sent a line of more than {LONGEST_LINE_BYTES} bytes")
