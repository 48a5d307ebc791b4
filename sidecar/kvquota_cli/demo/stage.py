"""Where the demonstration plays: what it needs of embedded mode or of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from kvquota_api.pod_config import Enforcement
from kvquota_api.usage import SyncRequest, UsageReport
from kvquota_cli.errors import CliError, ExitCode
from kvquota_cli.tables.table import Table
from kvquota_sidecar.sidecar import Sidecar

T = TypeVar("T")

SETTLE_SECONDS: Final = 60.0  # for a second or two on an idle machine; a busy engine lets go step by step
LOOK_SECONDS: Final = 0.05


class Stage(Protocol):
    """An async context manager; inside it the quotas are in force."""

    @property
    def sidecar(self) -> Sidecar:
        """The sidecar that stands before the engine."""

    async def enforce(self, enforcement: Enforcement) -> None:
        """Edit the pool; returns before the edit is in force."""

    async def table(self) -> Table:
        """What `kubectl get tq` prints."""


def url_of(stage: Stage) -> str:
    """Where the clients send."""
    address = stage.sidecar.traffic_address
    return f"http://{address.host}:{address.port}"


def report_of(stage: Stage) -> UsageReport:
    """The usage now, as the operator gets it."""
    return stage.sidecar.sync(SyncRequest(config_digest="", identity_digest=""))


async def switch(stage: Stage, enforcement: Enforcement) -> None:
    """Edit the pool, and return when the sidecar has the new config."""
    before = report_of(stage).in_force.generation
    await stage.enforce(enforcement)
    await until(lambda: report_of(stage).in_force.generation > before, "the edited ModelPool to be in force")


async def until(true: Callable[[], bool], what: str) -> None:
    """Wait for it. Raises CliError when it does not come."""

    async def found() -> bool | None:
        return true() or None

    await until_found(found, what)


async def until_found(find: Callable[[], Awaitable[T | None]], what: str) -> T:
    """What `find` gives once it gives something. Raises CliError when it does not."""
    try:
        async with asyncio.timeout(SETTLE_SECONDS):
            while True:
                found = await find()
                if found is not None:
                    return found
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError as error:
        raise CliError(f"waited {SETTLE_SECONDS:.0f} s in vain for {what}: run it again", ExitCode.PROBLEM) from error
