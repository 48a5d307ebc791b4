"""The sidecar beside known proxies, in one run: `make bench`, or `python tests/bench [OPTIONS OF proxybench/bench.py]`.

Writes a config in which one tenant has room for all that the load asks, starts `python -m kvquota_sidecar` on it and
hands over to proxybench. With `--refuse` the tenant has room for nothing, so that what is measured is the refusal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import (
    KvPlan,
    Ladder,
    PodConfig,
    PodRef,
    PoolIdentity,
    PoolRef,
    TenantShare,
    encode,
    key_digest,
    sealed,
)

HERE = Path(__file__).resolve().parent
KEY = "kvq-" + "5c" * 32
PEPPER = "ab" * 32
TENANT = "bench/load"
BLOCKS = 10_000_000  # more than 256 streams and 16 prompts of 100 kB ever ask for
PORT = 18080
ADMIN_PORT = 19600


def config(hard_blocks: int) -> PodConfig:
    return sealed(
        PodConfig(
            generation=1,
            digest="",
            pod=PodRef(namespace="bench", name="bench", uid="bench"),
            pool=PoolRef(namespace="bench", name="bench"),
            model="m",
            engine_type="OpenAI",
            kv=KvPlan(
                cap_blocks=BLOCKS,
                null_blocks=0,
                block_tokens=16,
                bytes_per_block=2 * 2**20,
                max_model_len=200_000,
                groups=(LayerGroup("Full", 16),),
            ),
            ladder=Ladder(),
            tenants=(
                TenantShare(id=TENANT, quota="load", priority=0, soft_blocks=hard_blocks // 2, hard_blocks=hard_blocks),
            ),
        )
    )


def identity() -> PoolIdentity:
    return sealed(PoolIdentity(digest="", pepper=PEPPER, api_keys={key_digest(PEPPER, KEY): TENANT}))


def main(arguments: list[str]) -> int:
    hard = 1 if "--refuse" in arguments else BLOCKS
    peers = [] if any(each.startswith("--peers") for each in arguments) else ["--peers", "nginx,haproxy,aiohttp"]
    with tempfile.TemporaryDirectory(prefix="kvquota-bench-") as folder:
        (Path(folder) / "config.json").write_bytes(encode(config(hard)))
        (Path(folder) / "identity.json").write_bytes(encode(identity()))
        sidecar = [
            *(sys.executable, "-m", "kvquota_sidecar", "--listen", "127.0.0.1:{port}", "--engine", "{upstream}"),
            *("--admin", f"127.0.0.1:{ADMIN_PORT}", "--config", f"{folder}/config.json", "--identity", folder),
        ]
        bench = [sys.executable, str(HERE / "proxybench" / "bench.py"), "--sidecar", str(PORT)]
        command = [*bench, *peers, "--header", f"Authorization: Bearer {KEY}", *arguments, "--", *sidecar]
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": ""}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
