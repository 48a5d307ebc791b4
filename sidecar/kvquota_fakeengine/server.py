"""The fake engine as a server: its addresses, its lives, and what goes wrong in them."""

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from aiohttp.typedefs import Handler

from kvquota_fakeengine import wire
from kvquota_fakeengine.clock import Clock, SystemClock
from kvquota_fakeengine.control import ControlRoutes
from kvquota_fakeengine.engine import FakeEngine
from kvquota_fakeengine.listener import Listener
from kvquota_fakeengine.misbehaviour import Faults, Metrics, Misbehaviour
from kvquota_fakeengine.output import json_response
from kvquota_fakeengine.requests import Refused
from kvquota_fakeengine.routes import LARGEST_BODY_BYTES, EngineRoutes, Received
from kvquota_fakeengine.settings import EngineSettings


class FakeEngineServer:
    """Answers while the context is open. `port` 0 takes a free one; `control_port` opens a second address for
    `/__fake` alone, which is there when the engine's own refuses connections."""

    def __init__(
        self,
        settings: EngineSettings | None = None,
        *,
        clock: Clock | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        control_host: str = "127.0.0.1",
        control_port: int | None = None,
    ) -> None:
        self.settings = settings or EngineSettings()
        self._clock = clock or SystemClock()
        self._faults = Faults()
        self.engine = FakeEngine(self.settings, self._clock, self._faults)
        self._routes = EngineRoutes(self.settings, lambda: self.engine, self._faults)
        self._listener = Listener(self._application(), host, port)
        self._control: Listener | None = None
        if control_port is not None:
            self._control = Listener(self._control_application(), control_host, control_port)
        self._stack = AsyncExitStack()
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._life: asyncio.Task[None] | None = None

    @property
    def base_url(self) -> str:
        return f"http://{self._listener.host}:{self._listener.port}"

    @property
    def control_url(self) -> str:
        """Where `/__fake` is found whatever happens to the engine's own address."""
        listener = self._control or self._listener
        return f"http://{listener.host}:{listener.port}"

    @property
    def received(self) -> deque[Received]:
        """The latest requests to generating routes, the oldest first."""
        return self._routes.received

    def misbehaviour(self) -> Misbehaviour:
        return self._faults.current

    async def __aenter__(self) -> Self:
        """Raises CannotListenError."""
        try:
            await self._enter()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _enter(self) -> None:
        self._group = await self._stack.enter_async_context(asyncio.TaskGroup())
        self._stack.callback(self._cancel_tasks)
        self._live()
        for listener in self._listeners():
            self._stack.push_async_callback(listener.cleanup)
            await listener.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, where)

    async def misbehave(self, misbehaviour: Misbehaviour) -> None:
        """From now on do this wrong, and nothing else."""
        if misbehaviour.metrics is Metrics.STALE:
            self._routes.freeze_metrics()
        self._faults.set(misbehaviour)
        await (self._listener.refuse() if misbehaviour.refuse_connections else self._listener.open())

    def later(self, seconds: float, misbehaviour: Misbehaviour) -> None:
        """Change to this after `seconds`."""
        self._start(self._misbehave_after(seconds, misbehaviour))

    async def restart(self, down_seconds: float = 0.0) -> None:
        """Die with everything that was running and cached, and come back on the same address as a new process."""
        await self._listener.die()
        if self._life is not None:
            self._life.cancel()
        await self._clock.sleep(down_seconds)
        self.engine = FakeEngine(self.settings, self._clock, self._faults)
        self._live()
        await self._listener.open()

    def _live(self) -> None:
        self._life = self._start(self.engine.run())

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        if self._group is None:
            raise RuntimeError("enter the server's context first")
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _misbehave_after(self, seconds: float, misbehaviour: Misbehaviour) -> None:
        await self._clock.sleep(seconds)
        await self.misbehave(misbehaviour)

    def _listeners(self) -> list[Listener]:
        return [self._listener] if self._control is None else [self._listener, self._control]

    def _application(self) -> web.Application:
        app = web.Application(middlewares=[_refusals], client_max_size=LARGEST_BODY_BYTES)
        app.on_response_prepare.append(_sign)
        self._routes.add_to(app)
        ControlRoutes(self).add_to(app)
        return app

    def _control_application(self) -> web.Application:
        app = web.Application()
        ControlRoutes(self).add_to(app)
        return app


async def _sign(request: web.Request, response: web.StreamResponse) -> None:  # noqa: ARG001 - aiohttp's shape
    response.headers["Server"] = "uvicorn"


@web.middleware
async def _refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer in vLLM's words: its error object, and the framework's for what no route takes."""
    try:
        return await handler(request)
    except Refused as refused:
        return json_response(wire.refusal(refused), status=refused.status)
    except web.HTTPException as error:
        response = json_response({"detail": error.reason}, status=error.status)
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
