"""Fixtures for tests that need an engine, or start programs of their own."""

from collections.abc import AsyncIterator, Iterator

import pytest

from kvquota_fakeengine.clock import ManualClock
from kvquota_fakeengine.server import FakeEngineServer
from kvquota_fakeengine.settings import EngineSettings
from testcluster.processes import Keeper
from testengine.client import EngineClient, client_of
from testengine.port import EngineUnderTest
from testengine.vllm import VllmEngine


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    """Starts programs, and ends those that are left when the test is over."""
    keeper = Keeper()
    try:
        yield keeper
    finally:
        keeper.stop()


@pytest.fixture(scope="session")
def vllm_engine() -> Iterator[VllmEngine]:
    """The real vLLM with its log, started once a run. Its environment is built first where it is missing."""
    with VllmEngine() as engine:
        yield engine


@pytest.fixture(scope="session")
def vllm(vllm_engine: VllmEngine) -> EngineUnderTest:
    """The real vLLM as a test sees any engine."""
    return vllm_engine.under_test


@pytest.fixture
async def vllm_client(vllm: EngineUnderTest) -> AsyncIterator[EngineClient]:
    """A client of the real vLLM, which is idle when the test begins."""
    async with client_of(vllm) as client:
        await client.until_idle()
        yield client


@pytest.fixture(params=["fake", pytest.param("vllm", marks=pytest.mark.engine)])
async def either_engine(request: pytest.FixtureRequest) -> AsyncIterator[EngineUnderTest]:
    """The fake engine and the real one in turn, of the same size."""
    if request.param == "vllm":
        yield request.getfixturevalue("vllm")
        return
    settings = EngineSettings(model="tiny", block_tokens=32, blocks=512, max_model_len=2048, decode_rate=500)
    async with FakeEngineServer(settings) as server:
        yield EngineUnderTest(
            name="fake", base_url=server.base_url, model="tiny", block_tokens=32, blocks=512, max_model_len=2048
        )
        server.engine.scheduler.check_integrity()


@pytest.fixture
async def engine_client(either_engine: EngineUnderTest) -> AsyncIterator[EngineClient]:
    """A client of either engine, which is idle when the test begins."""
    async with client_of(either_engine) as client:
        await client.until_idle()
        yield client


@pytest.fixture
def engine_clock() -> ManualClock:
    """The time of `slow_engine`; it stands still until the test moves it."""
    return ManualClock()


@pytest.fixture
async def slow_engine(engine_clock: ManualClock) -> AsyncIterator[FakeEngineServer]:
    """A fake engine whose time only the test moves: 0.1 s for one token of every answer, next to none for prompts."""
    settings = EngineSettings(
        model="tiny", block_tokens=4, blocks=129, max_model_len=512, decode_rate=10, prefill_rate=1e9
    )
    async with FakeEngineServer(settings, clock=engine_clock, control_port=0) as server:
        yield server
        server.engine.scheduler.check_integrity()


@pytest.fixture
async def quick_engine() -> AsyncIterator[FakeEngineServer]:
    """A fake engine that loses no time."""
    settings = EngineSettings(model="tiny", block_tokens=4, blocks=129, max_model_len=512, decode_rate=1e6)
    async with FakeEngineServer(settings, control_port=0) as server:
        yield server
        server.engine.scheduler.check_integrity()
