"""A sidecar inside the test, before the real vLLM."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import KvPlan, TenantShare
from raw_client import Got, RawClient
from sidecar_rig import Running, config, eventually, post, running_sidecar
from testengine.port import EngineUnderTest


def plan_of(engine: EngineUnderTest) -> KvPlan:
    """What the operator would have planned for the engine of the tests."""
    return KvPlan(
        cap_blocks=engine.blocks,
        null_blocks=1,
        block_tokens=engine.block_tokens,
        bytes_per_block=32 * 1024,
        max_model_len=engine.max_model_len,
        groups=(LayerGroup("Full", engine.block_tokens),),
        shares_prefixes=True,
    )


@asynccontextmanager
async def before(engine: EngineUnderTest, *shares: TenantShare, **changes: Any) -> AsyncIterator[Running]:
    """A sidecar that has seen how large the engine is; `changes` of its settings."""
    wanted = config(*shares, kv=plan_of(engine))
    async with running_sidecar(address_of(engine), wanted=wanted, sample_seconds=0.1, **changes) as running:
        await eventually("the engine was sampled", lambda: running.report().engine.used_blocks is not None)
        yield running


def address_of(engine: EngineUnderTest) -> tuple[str, int]:
    host, _, port = engine.base_url.removeprefix("http://").partition(":")
    return host, int(port)


async def straight_to(engine: EngineUnderTest) -> RawClient:
    """A client that goes around the sidecar."""
    return await RawClient.open(*address_of(engine))


def settled(running: Running, patch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What the engine's own counts tell the books from now on: tokens of each prompt, and those produced for it."""
    counts: list[tuple[int, int]] = []
    books = running.sidecar.books
    settle = books.settle

    def noted(ticket: int, prompt: Any, produced: Any, now: float, cached: Any = None) -> None:
        counts.append((prompt, produced))
        settle(ticket, prompt, produced, now, cached)

    patch.setattr(books, "settle", noted)
    return counts


async def asked(running: Running, path: str, body: dict[str, Any], *headers: str, tenant: str) -> Got:
    """The answer to one request of a tenant."""
    async with await running.connect() as client:
        return await client.ask(post(json.dumps({"model": "tiny", **body}).encode(), path, tenant, headers))
