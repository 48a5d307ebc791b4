"""The demonstration itself: two acts, and a look at what is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

import aiohttp

from kvquota_cli.demo.display import Display
from kvquota_cli.demo.scenario import FLOOD, STEADY, TENANTS, Scenario, Setting
from kvquota_cli.demo.stage import LOOK_SECONDS, Stage, report_of, switch, until, url_of
from kvquota_cli.demo.tally import Act, Tally
from kvquota_cli.demo.telling import is_over, tells_of
from kvquota_cli.demo.traffic import Crowd, client_session
from kvquota_cli.demo.verdict import Leftover, Outcome, leftover_of
from kvquota_cli.errors import CliError
from kvquota_cli.tables.table import Table

COUNTED_PART: Final = 0.35  # of the time: enough for a flooded engine to make somebody wait
SHOW_SECONDS: Final = 1.0
LAST_SECONDS: Final = 3.0  # of an act: the table at its end comes soon, so no other one is kept
STATUS_SECONDS: Final = 12.0  # twice the longest from a change to the status that tells it, as the operator spaces them


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
                " In the table, INFLIGHT counts a tenant's requests, those that wait for the engine too; USED is the"
                " tokens of KV cache that they have filled."
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
        leftover = await self._leftover()
        self._display.say("The end: nobody sends any more, and what was running has ended or was cut.")
        self._display.conclude(await self._table_when(is_over), _tallies(crowds))
        return Outcome(_tallies(crowds), leftover)

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
                table = await self._stage.table()
                self._display.show(table, tallies, telling=left > LAST_SECONDS and tells_of(self._act, table))
        self._display.conclude(await self._table_when(lambda table: tells_of(self._act, table)), tallies)

    async def _table_when(self, true: Callable[[Table], bool]) -> Table:
        """The first table of which it is true; what there is then, where none comes."""
        end = time.monotonic() + STATUS_SECONDS
        while True:
            table = await self._stage.table()
            if true(table) or time.monotonic() > end:
                return table
            await asyncio.sleep(LOOK_SECONDS)

    async def _leftover(self) -> Leftover:
        """What is held when it no longer changes, or when waiting for it makes no sense any more."""
        try:
            await until(lambda: leftover_of(report_of(self._stage)).nothing, "ledger and engine to be empty")
        except CliError as error:
            self._display.say(str(error))
        return leftover_of(report_of(self._stage))
