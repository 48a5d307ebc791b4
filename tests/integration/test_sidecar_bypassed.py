"""What the engine did by its own counters, in the report: what came through the sidecar, and what went past it."""

from aiohttp import ClientSession

from kvquota_api.usage import EngineRecent
from kvquota_fakeengine.server import FakeEngineServer
from kvquota_fakeengine.settings import EngineSettings
from sidecar_rig import Running, chat, eventually, on_both_loops, post, running_sidecar

TEXT = "word " * 100


async def through(running: Running, count: int) -> None:
    async with await running.connect() as client:
        for _ in range(count):
            assert (await client.ask(post(chat(text=TEXT, max_tokens=4)))).status == 200


async def past(engine: FakeEngineServer, count: int) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    async with ClientSession() as session:
        for _ in range(count):
            async with session.post(f"{engine.base_url}/v1/chat/completions", json=body) as answer:
                assert answer.status == 200


@on_both_loops
async def test_what_went_past_the_sidecar_is_counted_and_what_came_through_is_not() -> None:
    settings = EngineSettings(model="tiny", block_tokens=16, blocks=1024, decode_rate=1e6)
    async with FakeEngineServer(settings, control_port=0) as engine:
        port = int(engine.base_url.rpartition(":")[2])
        async with running_sidecar(("127.0.0.1", port), sample_seconds=0.05) as running:

            def recent() -> EngineRecent:
                return running.report().engine.recent

            await eventually("the engine was looked at", lambda: recent().finished == 0)
            await through(running, 6)
            await eventually("its own requests are counted", lambda: recent().finished == 6)
            assert recent().foreign == 0
            await past(engine, 8)
            await eventually("the others too", lambda: recent().finished == 14)
            assert recent().foreign == 8
            (search,) = [each for each in running.report().tenants if each.total.admitted]
    assert search.total.prompt_tokens > search.total.cached_tokens > 0
