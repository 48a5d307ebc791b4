"""The framework against an API server that ends it in every way: it is begun anew, and leaves nothing behind."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import kopf
import pytest
from aiohttp import web

from http_stand_in import serving
from kvquota_operator.adapters.credentials import CredentialsError
from kvquota_operator.handlers import events
from kvquota_operator.handlers import framework as framework_module
from kvquota_operator.handlers.events import HandlerDeps
from kvquota_operator.handlers.framework import Framework
from virtual_time import LoopClock

DEADLINE_S = 30.0
KVQUOTA = "/apis/kvquota.dev/v1alpha1"
PLURALS = ("modelpools", "tenantquotas")
KINDS = {"modelpools": "ModelPool", "tenantquotas": "TenantQuota"}
REFUSED = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "message": "too old"}


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what another thread brings about."""
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110 - it wakes nobody
            await asyncio.sleep(0.02)


@dataclass
class Server:
    """It knows one object of each kind. `oddly` answers the first watch of each."""

    oddly: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
    token: str = "new"
    missing: int = 0  # how often the kinds are not known
    watches: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PLURALS, 0))

    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def watched(self, times: int) -> None:
        """Until a watch of each kind has begun so often."""
        await until(lambda: min(self.watches.values()) >= times)

    def end_watches(self) -> None:
        """Those that are open."""
        self.over.set()
        self.over = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"] != f"Bearer {self.token}":
            return web.json_response({**REFUSED, "code": 401}, status=401)
        if request.path == KVQUOTA and self.missing > 0:
            self.missing -= 1
            return web.json_response({**REFUSED, "code": 404}, status=404)
        found = discovered(request.path)
        if found is not None:
            return web.json_response(found)
        plural = request.path.rpartition("/")[2]
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [self._object(plural)]})
        self.watches[plural] += 1
        if self.oddly is not None and self.watches[plural] == 1:
            return await self.oddly(request)
        response = web.StreamResponse()
        await response.prepare(request)
        await self.over.wait()
        return response

    def _object(self, plural: str) -> dict[str, Any]:
        metadata = {"name": "a", "namespace": "x", "uid": plural, "resourceVersion": "1"}
        return {"apiVersion": "kvquota.dev/v1alpha1", "kind": KINDS[plural], "metadata": metadata}


def discovered(path: str) -> dict[str, Any] | None:
    """What an API server says of its own resources, as far as kopf asks."""
    group = {"name": "kvquota.dev", "preferredVersion": {"version": "v1alpha1"}, "versions": [{"version": "v1alpha1"}]}
    ours = [
        {"name": plural, "kind": kind, "singularName": kind.lower(), "namespaced": True, "verbs": ["list", "watch"]}
        for plural, kind in KINDS.items()
    ]
    namespaces = {"name": "namespaces", "kind": "Namespace", "singularName": "namespace", "namespaced": False}
    said: dict[str, dict[str, Any]] = {
        "/api": {"versions": ["v1"]},
        "/api/v1": {"resources": [{**namespaces, "verbs": ["list", "watch"]}]},
        "/apis": {"groups": [group]},
        KVQUOTA: {"resources": ours},
    }
    return said.get(path)


@dataclass
class Scene:
    """A framework at work. `heard`: plural and type of each event; `ends`: why it was begun anew."""

    begin_anew: Callable[[], None]
    task: "asyncio.Task[None]"
    heard: list[tuple[str, str | None]]
    ends: list[str]

    async def listens(self, lists: int) -> None:
        """Until each kind was listed so often."""
        await until(lambda: min(self.heard.count((kind, None)) for kind in KINDS.values()) >= lists)


@asynccontextmanager
async def framework(server: Server, tokens: Callable[[], str] = lambda: "new") -> AsyncIterator[Scene]:
    """Ends within a second, and leaves no thread behind."""
    async with serving(server.answer, handler_cancellation=True) as port:

        async def login() -> kopf.ConnectionInfo:
            return kopf.ConnectionInfo(server=f"http://127.0.0.1:{port}", scheme="Bearer", token=tokens())

        heard: list[tuple[str, str | None]] = []
        ends: list[str] = []
        deps = HandlerDeps(lambda kind, event, _: heard.append((kind, event)), login)
        framework = Framework(("x",), deps, LoopClock(), restarted=ends.append)
        ready = asyncio.Event()
        task = asyncio.create_task(framework.run(ready))
        try:
            async with asyncio.timeout(DEADLINE_S):
                await ready.wait()
            yield Scene(framework.begin_anew, task, heard, ends)
        finally:
            start = time.monotonic()
            task.cancel()
            await asyncio.wait([task])
        assert task.cancelled()
        assert time.monotonic() - start < 1
        for each in threading.enumerate():
            if each.name == "apart":
                await asyncio.to_thread(each.join, 1)
                assert not each.is_alive()


async def torn(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b'{"type": "MODIFIED", "object": {"meta')


async def error_event(request: web.Request) -> web.StreamResponse:
    return web.Response(body=json.dumps({"type": "ERROR", "object": {**REFUSED, "code": 500}}).encode())


async def no_event(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"[]\n")


def refusing(status: int, **headers: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({**REFUSED, "code": status}, status=status, headers=headers)

    return answer


@pytest.mark.parametrize(
    ("oddly", "reason"),
    [
        pytest.param(refusing(409), "APIConflictError", id="409"),
        pytest.param(refusing(410), "APIClientError", id="410"),
        pytest.param(refusing(422), "APIUnprocessableEntityError", id="422"),
        pytest.param(refusing(401), "Forbidden", id="401 for a token that is good the next time"),
        pytest.param(refusing(429, **{"Retry-After": "Wed, 21 Oct 2026"}), "ValueError", id="a date to try again"),
        pytest.param(torn, "JSONDecodeError", id="a line that ends too early"),
        pytest.param(no_event, "TypeError", id="JSON that is no event"),
        pytest.param(error_event, "WatchingError", id="an error as an event"),
    ],
)
async def test_it_is_begun_anew_after_whatever_ends_it(
    oddly: Callable[[web.Request], Awaitable[web.StreamResponse]], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(oddly)
    async with framework(server) as scene:
        await scene.listens(2)
        await asyncio.sleep(0.2)
        assert set(scene.ends) == {reason}
        assert not scene.task.done()
    said = [each.getMessage() for each in caplog.records if each.name == "asyncio"]
    assert said == [], "no task is destroyed, and no error was forgotten"


async def test_it_is_begun_anew_where_the_store_was_put_back() -> None:
    server = Server()
    async with framework(server) as scene:
        await server.watched(1)
        scene.begin_anew()
        await server.watched(2)
        assert scene.ends == ["PutBack"]


async def test_a_token_that_is_replaced_is_read_anew() -> None:
    server = Server(token="first")
    tokens = {"now": "first"}
    async with framework(server, lambda: tokens["now"]) as scene:
        await server.watched(1)
        server.token = tokens["now"] = "second"
        server.end_watches()
        await server.watched(2)
        assert scene.ends == []


async def test_a_token_that_is_refused_until_it_is_replaced_ends_nothing() -> None:
    server = Server(token="first")
    tokens = {"now": "first"}
    async with framework(server, lambda: tokens["now"]) as scene:
        await server.watched(1)
        server.token = "second"
        server.end_watches()
        await until(lambda: len(scene.ends) == 2)
        tokens["now"] = "second"
        await server.watched(2)
        assert set(scene.ends) == {"Forbidden"}


async def test_credentials_that_cannot_be_read_for_a_moment_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LOGIN_AGAIN_SECONDS", 0.2)
    tries = 0

    def token() -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise CredentialsError("a kubeconfig that is being written")
        return "new"

    async with framework(Server(), token) as scene:
        await scene.listens(1)
        assert (tries, scene.ends) == (3, [])


async def test_it_ends_at_once_while_it_waits_to_be_begun_anew() -> None:
    async def ending(_: web.Request) -> web.StreamResponse:
        return web.json_response(REFUSED, status=410)

    server = Server()
    server.answer = ending  # type: ignore[method-assign,assignment]  # the server of this test answers otherwise from here on
    async with framework(server) as scene:
        await until(lambda: len(scene.ends) == 3)
    assert set(scene.ends) == {"APIClientError"}


async def test_kinds_that_are_not_known_at_first_are_watched_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framework_module, "UNWATCHED_SECONDS", 0.5)
    async with framework(Server(missing=2)) as scene:
        await scene.listens(1)
        await asyncio.sleep(1)
        assert scene.ends == ["NotServed", "NotServed"]
