"""The demonstration itself: two acts, and a look at what is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

import aiohttp

from kvquota_cli.demo.display import Display
from kvquota_cli.demo.scenario import FLOOD, STEADY, TENANTS, Scenario, Setting
from kvquota_cli.demo.stage import Stage, report_of, switch, until, url_of
from kvquota_cli.demo.tally import Act, Tally
from kvquota_cli.demo.traffic import Crowd, client_session
from kvquota_cli.demo.verdict import Leftover, Outcome, leftover_of
from kvquota_cli.errors import CliError

COUNTED_PART: Final = 0.35  # of the time: enough for a flooded engine to make somebody wait
SHOW_SECONDS: Final = 1.0


def _tallies(crowds: Mapping[str, Crowd]) -> dict[str, Tally]:
    return {tenant: crowd.tally for tenant, crowd in crowds.items()}


class Performance:
    """`seconds`: how long the clients send, both acts together."""

    def __init__(self, stage: Stage, scenario: Scenario, setting: Setting, seconds: float, display: Display) -> None:
        self._stage = stage
        self._scenario = scenario
        self._setting = setting
        self._seconds = seconds
        self._display = display
        self._act: Act = "Counted"

    async def run(self) -> Outcome:
        """Play it. Raises CliError when an edit does not come into force."""
        async with client_session() as session, asyncio.TaskGroup() as tasks:
            crowds = {tenant: self._crowd(tenant, session) for tenant in TENANTS}
            steady = tasks.create_task(crowds[STEADY].run())
            self._display.say(
                "Act 1: the quotas only count (enforcement: Shadow). Flood takes the KV cache, steady waits behind it."
            )
            await self._flood(tasks, crowds, self._seconds * COUNTED_PART)
            await switch(self._stage, "Enforce")
            self._act = "Enforced"
            self._display.say(
                "Act 2: one field of the ModelPool is edited (enforcement: Enforce). The same flood again: what would"
                " pass its hard quota is refused at once, and steady finds room whenever it asks."
            )
            await self._flood(tasks, crowds, self._seconds * (1 - COUNTED_PART))
            steady.cancel()
        return Outcome(_tallies(crowds), await self._leftover())

    def _crowd(self, tenant: str, session: aiohttp.ClientSession) -> Crowd:
        return Crowd(
            session=session,
            url=url_of(self._stage),
            key=self._setting.keys[tenant],
            model=self._scenario.facts.model,
            habit=self._scenario.habit(tenant),
            act=lambda: self._act,
        )

    async def _flood(self, tasks: asyncio.TaskGroup, crowds: Mapping[str, Crowd], seconds: float) -> None:
        """Flood for `seconds`; returns when the engine has let go of the flood."""
        flood = tasks.create_task(crowds[FLOOD].run())
        await self._watch(seconds, _tallies(crowds))
        flood.cancel()
        await asyncio.wait({flood})
        await until(self._is_calm, "the engine to let go of what flood had sent")

    def _is_calm(self) -> bool:
        report = report_of(self._stage)
        flood = f"{self._setting.namespace}/{FLOOD}"
        held = sum(each.reserved for each in report.tenants if each.id == flood)
        return held == 0 and report.engine.waiting in (0, None)

    async def _watch(self, seconds: float, tallies: Mapping[str, Tally]) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(SHOW_SECONDS, left))
            if left > SHOW_SECONDS:
                self._display.show(await self._stage.table(), tallies)
        self._display.conclude(await self._stage.table(), tallies)

    async def _leftover(self) -> Leftover:
        """What is held when it no longer changes, or when waiting for it makes no sense any more."""
        try:
            await until(lambda: leftover_of(report_of(self._stage)).nothing, "ledger and engine to be empty")
        except CliError as error:
            self._display.say(str(error))
        return leftover_of(report_of(self._stage))
