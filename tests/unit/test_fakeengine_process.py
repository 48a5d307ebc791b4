"""The fake engine as a program of its own."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator

import aiohttp
import pytest

from testengine.bodies import COMPLETION, completion
from testengine.client import client_of, events
from testengine.port import EngineUnderTest

_PATIENCE_SECONDS = 60.0


@pytest.fixture
async def program() -> AsyncIterator[asyncio.subprocess.Process]:
    flags = ["--port", "0", "--served-model-name", "tiny", "--decode-rate", "5"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvquota_fakeengine", *flags, stdout=asyncio.subprocess.PIPE
    )
    yield process
    if process.returncode is None:
        process.kill()
    await process.wait()


async def test_it_says_where_it_serves_and_ends_when_told_cutting_what_runs(
    program: asyncio.subprocess.Process,
) -> None:
    assert program.stdout is not None
    async with asyncio.timeout(_PATIENCE_SECONDS):
        *words, url = (await program.stdout.readline()).decode().split()
        assert words == ["serving", "tiny", "on"]
        port = EngineUnderTest(
            name="fake", base_url=url, model="tiny", block_tokens=16, blocks=1024, max_model_len=4096
        )
        async with client_of(port) as client:
            assert (await client.get("/version")).status == 200
            async with client.open_stream(COMPLETION, completion(max_tokens=4000)) as response:
                arriving = events(response)
                await anext(arriving)
                program.send_signal(signal.SIGTERM)
                with pytest.raises(aiohttp.ClientPayloadError):
                    [event async for event in arriving]
        assert await program.wait() == 0
