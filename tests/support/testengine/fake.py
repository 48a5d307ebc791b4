"""The fake engine in a test's own process: what a test needs beside its HTTP."""

import asyncio

from kvquota_fakeengine.clock import ManualClock
from kvquota_fakeengine.server import FakeEngineServer
from testengine.client import eventually
from testengine.port import EngineUnderTest

# Real seconds; a request needs a few milliseconds to reach the engine, its answer takes none of them.
_PATIENCE_SECONDS = 60.0


def port_of(server: FakeEngineServer) -> EngineUnderTest:
    """The server as a test sees any engine."""
    sizes = server.settings
    return EngineUnderTest(
        name="fake",
        base_url=server.base_url,
        model=sizes.model,
        block_tokens=sizes.block_tokens,
        blocks=sizes.blocks,
        max_model_len=sizes.max_model_len,
    )


async def computed(server: FakeEngineServer, clock: ManualClock, tokens: int) -> None:
    """Let time pass until the engine has produced so many tokens in all."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while server.engine.scheduler.totals.generation_tokens < tokens:
            await clock.advance(0.1)


async def until_held(server: FakeEngineServer, blocks: int) -> None:
    """Wait until exactly so many blocks are held."""

    async def held() -> int:
        return server.engine.scheduler.pool.held

    await eventually(held, lambda now: now == blocks)
