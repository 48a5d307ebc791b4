"""`kvquota render` prints what the operator stores for the same objects on a real API server."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from operator_world import Object, World, operator, quota, until

pytestmark = pytest.mark.apiserver

PODS = ("llama-0", "llama-1", "llama-2")
TIERS = [{"name": "gold", "priority": 7, "kv": {"soft": {"percent": 10}, "hard": {"percent": 40}}}]


def rendered(folder: Path, namespace: str, pod: str, *options: str) -> str:
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "kvquota_cli",
        "render",
        "--manifests",
        folder,
        "-n",
        namespace,
        "--pod",
        pod,
    ]
    answer = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


async def export(world: World, folder: Path) -> None:
    for kind in ("modelpools", "tenantquotas", "pods"):
        (folder / f"{kind}.yaml").write_text(await world.kubectl("get", kind, "-o", "yaml"))


def what_counts(stored: Object) -> Object:
    """A ConfigMap without what only an API server adds."""
    meta = stored["metadata"]
    return {**stored, "metadata": {key: meta[key] for key in ("name", "namespace", "labels", "ownerReferences")}}


async def test_render_prints_the_config_map_that_the_operator_stores(world: World, tmp_path: Path) -> None:
    await world.add_pool(tiers=TIERS)
    await world.apply(
        quota("shared", hard=31, scope="Pool", maxConcurrentRequests=7, maxContextTokens=4096),
        quota("each", hard=50),
        {**quota("tiered"), "spec": {"tenant": "tiered", "modelPoolRef": {"name": "llama"}, "tier": "gold"}},
    )
    for name in PODS:
        await world.add_pod(name)
    await export(world, tmp_path)
    async with operator(world):
        await until(world.config_maps, lambda found: set(found) == set(PODS), what="every pod has a durable copy")
        stored = {
            each["metadata"]["ownerReferences"][0]["name"]: each
            for each in await world.list("configmaps", "-l", "kvquota.dev/pool")
        }
    for name in PODS:
        printed = yaml.safe_load(await asyncio.to_thread(rendered, tmp_path, world.namespace, name, "-o", "yaml"))
        assert printed == what_counts(stored[name])
