"""The routes under `/__fake`: what a test may ask of an engine in another process."""

import asyncio
import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Protocol

from aiohttp import web

from kvquota_fakeengine.engine import FakeEngine
from kvquota_fakeengine.misbehaviour import GOOD, Misbehaviour, misbehaviour_from
from kvquota_fakeengine.scheduling import Scheduler

# Long enough for any test, short enough that a forgotten one does not keep an engine wrong for ever.
_LONGEST_SECONDS = 3600.0


class Controlled(Protocol):
    """What is controlled."""

    engine: FakeEngine

    async def misbehave(self, misbehaviour: Misbehaviour) -> None: ...

    async def restart(self, down_seconds: float) -> None: ...

    def misbehaviour(self) -> Misbehaviour: ...

    def later(self, seconds: float, misbehaviour: Misbehaviour) -> None: ...


class ControlRoutes:
    """`POST /__fake/misbehave` with a misbehaviour's fields and, if it is to end, `for_seconds`; `DELETE` ends it."""

    def __init__(self, controlled: Controlled) -> None:
        self._controlled = controlled

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/__fake/state", self._state)
        app.router.add_get("/__fake/misbehave", self._show)
        app.router.add_post("/__fake/misbehave", self._misbehave)
        app.router.add_delete("/__fake/misbehave", self._behave)
        app.router.add_post("/__fake/restart", self._restart)

    async def _show(self, request: web.Request) -> web.Response:  # noqa: ARG002 - aiohttp's shape of a handler
        return web.json_response(dataclasses.asdict(self._controlled.misbehaviour()))

    async def _misbehave(self, request: web.Request) -> web.Response:
        try:
            document = _object(await request.read())
            seconds = _seconds(document.pop("for_seconds", None))
            misbehaviour = misbehaviour_from(document)
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        await self._controlled.misbehave(misbehaviour)
        if seconds is not None:
            self._controlled.later(seconds, GOOD)
        return web.json_response(dataclasses.asdict(misbehaviour))

    async def _behave(self, request: web.Request) -> web.Response:  # noqa: ARG002 - aiohttp's shape of a handler
        await self._controlled.misbehave(GOOD)
        return web.json_response(dataclasses.asdict(GOOD))

    async def _restart(self, request: web.Request) -> web.Response:
        try:
            seconds = _seconds(_object(await request.read()).get("down_seconds", 0.0)) or 0.0
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        # Shielded, since on the engine's own port the caller's connection is among those that are cut.
        await asyncio.shield(self._controlled.restart(seconds))
        return web.json_response({"started_at": self._controlled.engine.started_at})

    async def _state(self, request: web.Request) -> web.Response:  # noqa: ARG002 - aiohttp's shape of a handler
        return web.json_response(state(self._controlled.engine))


def state(engine: FakeEngine) -> dict[str, Any]:
    """Who holds what, in blocks of all ranks: what the metrics cannot tell apart."""
    ranks = [_rank_state(rank, scheduler) for rank, scheduler in enumerate(engine.schedulers)]
    numbers = {name: sum(rank[name] for rank in ranks) for name in ("usable", "held", "cached")}
    lists = {name: [each for rank in ranks for each in rank[name]] for name in ("waiting", "running", "lingering")}
    return {"started_at": engine.started_at} | numbers | lists


def _rank_state(rank: int, scheduler: Scheduler) -> dict[str, Any]:
    pool = scheduler.pool
    running = [
        {
            "key": s.key,
            "salt": s.work.salt,
            "priority": s.work.priority,
            "blocks": list(pool.table(s.key)),
            "rank": rank,
        }
        for s in scheduler.running
    ]
    return {
        "usable": pool.usable,
        "held": pool.held,
        "cached": pool.cached,
        "waiting": [sequence.key for sequence in scheduler.waiting],
        "running": running,
        "lingering": [{"key": key, "blocks": list(pool.table(key))} for key in sorted(scheduler.lingering)],
    }


def _object(body: bytes) -> dict[str, Any]:
    document = json.loads(body or b"{}")
    if not isinstance(document, Mapping):
        raise ValueError("send a JSON object")
    return dict(document)


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LONGEST_SECONDS:
        raise ValueError(f"give seconds as a number from 0 to {_LONGEST_SECONDS:.0f}")
    return float(value)
