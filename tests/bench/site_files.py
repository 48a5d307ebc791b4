"""The documents of a sidecar that is measured: one tenant, with room for everything or for nothing."""

from __future__ import annotations

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

KEY = "kvq-" + "5c" * 32
PEPPER = "ab" * 32
TENANT = "bench/load"
PLENTY = 10_000_000  # blocks: more than 1,024 streams and 16 prompts of 100 kB ever ask for
NOTHING = 1


def write(folder: Path, hard_blocks: int) -> None:
    """config.json and identity.json."""
    (folder / "config.json").write_bytes(encode(config(hard_blocks)))
    (folder / "identity.json").write_bytes(encode(identity()))


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
                cap_blocks=PLENTY,
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
