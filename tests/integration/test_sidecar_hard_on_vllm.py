"""A tight hard, held against the blocks that the real vLLM says it has in use: the sidecar is a program of its own."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kvquota_api import usage
from kvquota_api.usage import UsageReport
from raw_client import RawClient
from sidecar_on_vllm import plan_of
from sidecar_program import Program, files_of, mounted, send, start, until
from sidecar_rig import BATCH, OTHER, SEARCH, TOKEN, config, get, share
from testcluster.processes import Keeper
from testengine.mixed_load import Load
from testengine.port import EngineUnderTest

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("vllm_client")]  # each begins on an idle engine

BEARER = f"Authorization: Bearer {TOKEN}"
HARD = 24  # blocks of 32 tokens, of each tenant: three or four of the longest requests
REQUESTS = 400
CLIENTS = 12  # at a time
LONGEST = 96  # tokens of output, so that blocks are held for a while
# What hard may be passed by: prompts are known by estimate, whose median is off by a tenth at most.
ERROR = 0.1


@dataclass(slots=True)
class Seen:
    """What a report said: `used` by the engine, `reserved` by the books."""

    used: int
    reserved: dict[str, int]


@dataclass(slots=True)
class Watched:
    """Everything that the sidecar said while the load ran."""

    program: Program
    seen: list[Seen] = field(default_factory=list)

    async def connect(self) -> RawClient:
        return await _to(self.program.url)

    async def watch(self) -> None:
        async with await _to(self.program.admin_url) as client:
            while True:
                report = usage.decode_report((await client.ask(get("/v1/usage", BEARER))).body)
                reserved = {each.id: each.reserved for each in report.tenants}
                self.seen.append(Seen(report.engine.used_blocks or 0, reserved))
                await asyncio.sleep(0.02)

    def report(self) -> UsageReport:
        return usage.decode_report(send(f"{self.program.admin_url}/v1/usage", Authorization=f"Bearer {TOKEN}")[1])

    def counted(self, name: str) -> int:
        lines = (line.split() for line in self.program.metrics if line.startswith(f"kvquota_{name}_total "))
        return int(float(next(lines)[1]))


async def _to(url: str) -> RawClient:
    where = urlsplit(url)
    return await RawClient.open(where.hostname or "", where.port or 0)


@asynccontextmanager
async def watched(
    keeper: Keeper, folder: Path, engine: EngineUnderTest, tenants: Sequence[str]
) -> AsyncIterator[Watched]:
    shares = [share(each, soft=HARD // 4, hard=HARD, concurrent=64) for each in tenants]
    wanted = config(*shares, kv=plan_of(engine))
    flags = ["--sample-seconds", "0.05", "--drain-seconds", "0", "--lame-duck-seconds", "0"]
    program = start(keeper, mounted(folder, wanted), "--engine", engine.base_url, *files_of(folder), *flags)
    until("it is ready", lambda: send(f"{program.admin_url}/readyz")[0] == 200)
    scene = Watched(program)
    watching = asyncio.create_task(scene.watch())
    try:
        yield scene
    finally:
        watching.cancel()


@pytest.mark.parametrize("tenants", [(SEARCH,), (SEARCH, BATCH, OTHER)], ids=["alone", "beside others"])
async def test_neither_the_charge_nor_the_engines_own_blocks_pass_hard_by_more_than_the_error(
    keeper: Keeper, tmp_path: Path, vllm: EngineUnderTest, tenants: Sequence[str]
) -> None:
    async with watched(keeper, tmp_path, vllm, tenants) as scene:
        load = Load(connect=scene.connect, tenants=tenants, requests=REQUESTS, longest=LONGEST)
        await load.run(CLIENTS)
        until("nothing is held", lambda: not any(each.reserved for each in scene.report().tenants))
        until("the engine is idle", lambda: scene.report().engine.used_blocks == 0)
        late, asked = scene.counted("tokenizer_late"), scene.counted("tokenizer_asked")
    charges = [charge for each in scene.seen for charge in each.reserved.values()]
    used = max(each.used for each in scene.seen)
    together = HARD * len(tenants)
    sys.stdout.write(
        f"{dict(load.statuses)}; charge at most {max(charges)} of {HARD}; engine at most {used} of {together}\n"
    )
    sys.stdout.write(f"{len(scene.seen)} reports; the tokenizer was asked {asked} times and late {late} times\n")
    assert load.statuses[429] > 10
    assert load.statuses[200] > 20
    assert set(load.statuses) <= {200, 400, 429}  # 400: four long texts at once can never fit
    assert HARD // 2 < max(charges) <= HARD * (1 + ERROR)
    assert together // 4 < used <= together * (1 + ERROR)
