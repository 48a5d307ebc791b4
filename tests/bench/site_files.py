"""The documents of a sidecar that is measured: one tenant with room for everything, for little or for nothing;
where that is wanted another one with room for little."""

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
OTHER_KEY = "kvq-" + "5d" * 32
PEPPER = "ab" * 32
TENANT = "bench/load"
OTHER = "bench/flood"  # who floods
PLENTY = 10_000_000  # blocks: more than 1,024 streams and 16 prompts of 100 kB ever ask for
LITTLE = 1000  # what one stream of proxybench takes as a whole
NOTHING = 1


def write(folder: Path, hard_blocks: int, *, neighbour: bool = False) -> None:
    """config.json and identity.json. `neighbour`: with the other tenant."""
    (folder / "config.json").write_bytes(encode(config(hard_blocks, neighbour=neighbour)))
    (folder / "identity.json").write_bytes(encode(identity()))


def share(tenant: str, hard_blocks: int) -> TenantShare:
    return TenantShare(id=tenant, quota="load", priority=0, soft_blocks=hard_blocks // 2, hard_blocks=hard_blocks)


def config(hard_blocks: int, *, neighbour: bool = False) -> PodConfig:
    tenants = (share(TENANT, hard_blocks), share(OTHER, LITTLE)) if neighbour else (share(TENANT, hard_blocks),)
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
            tenants=tenants,
        )
    )


def identity() -> PoolIdentity:
    keys = {KEY: TENANT, OTHER_KEY: OTHER}
    return sealed(
        PoolIdentity(digest="", pepper=PEPPER, api_keys={key_digest(PEPPER, key): each for key, each in keys.items()})
    )
