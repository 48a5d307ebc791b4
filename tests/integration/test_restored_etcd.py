"""An operator that runs while the etcd of its API server is put back to an earlier snapshot."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from operator_world import World, operator, quota, until, until_true, with_crds
from testcluster.apiserver import ApiServer

pytestmark = pytest.mark.apiserver


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """One of its own: what others have there would be put back too."""
    with ApiServer() as server, with_crds(server) as server:
        yield server


async def version(world: World) -> int:
    return int((await world.get("tenantquota", "search"))["metadata"]["resourceVersion"])


async def test_a_running_operator_follows_an_etcd_that_is_put_back(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot = tmp_path / "etcd"
    await world.add_pool()
    await world.apply(quota("search", hard=50))
    stays = await world.add_pod("llama-0")
    async with operator(world):
        await until_true(lambda: stays.hard("search") is not None, what="a config")
        half = stays.hard("search")
        await asyncio.to_thread(world.server.without_etcd, lambda data: shutil.copytree(data, snapshot))
        before = await version(world)

        await world.patch("tenantquota", "search", {"spec": {"kv": {"hard": {"percent": 20}}}})
        goes = await world.add_pod("llama-1")
        await until_true(lambda: goes.hard("search") == stays.hard("search") != half, what="the lowered limit on both")
        enforced = stays.config
        later = await version(world)

        def put_back(data: Path) -> None:
            shutil.rmtree(data)
            shutil.copytree(snapshot, data)

        await asyncio.to_thread(world.server.without_etcd, put_back)
        assert before <= await version(world) < later
        await until_true(lambda: stays.hard("search") == half, what="the limit of the snapshot again")
        assert stays.config is not None
        assert enforced is not None
        assert stays.config.generation > enforced.generation
        await until(world.config_maps, lambda found: found["llama-0"] == stays.config, what="the durable copy")

        await world.patch("tenantquota", "search", {"spec": {"kv": {"hard": {"percent": 10}}}})
        await until_true(lambda: stays.hard("search") not in (None, half), what="an edit after it")
        comes = await world.add_pod("llama-2")
        await until_true(lambda: comes.hard("search") == stays.hard("search"), what="a new pod after it")
        asked, others = goes.asked, stays.asked
        await until_true(lambda: stays.asked > others + 5, what="some passes")
        assert goes.asked == asked
    told = [getattr(record, "kvquota_fields", {}).get("event") for record in caplog.records]
    assert told.count("store_put_back") == 1
