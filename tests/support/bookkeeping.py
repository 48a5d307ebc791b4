"""Builders for tests of the sidecar's books: shares, configs, and requests of a wanted size."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import KvPlan, Ladder, PodConfig, PodRef, PoolRef, TenantShare
from kvquota_sidecar.estimate.outputs import FEWEST
from kvquota_sidecar.ledger.books import Admitted, Ask, AskedPrompt, Books, Cause, EngineSample

BLOCK = 16  # tokens of a block in every config here
PERIOD = 1.0  # seconds between two readings of the gauge


def exact(tokens: int) -> AskedPrompt:
    """A prompt of exactly so many tokens."""
    return AskedPrompt(Tokens(tokens), Tokens(tokens))


def asking(tenant: str, prompts: tuple[int, ...], copies: int, output_limit: int | None, **more: Any) -> Ask:
    """A request with prompts of exactly so many tokens."""
    limit = None if output_limit is None else Tokens(output_limit)
    return Ask(tenant, tuple(map(exact, prompts)), copies, limit, **more)


streamed = partial(asking, growth="Seen")  # a request whose output is seen while it grows


def ended(books: Books, now: float = 0.0) -> list[int]:
    """Tickets of the requests that the books end now."""
    return [each.ticket for each in books.turn(now).endings]


def share(name: str = "search", **changes: Any) -> TenantShare:
    """A tenant of namespace `inference` with a quota of its own name, no soft, and no limits but the pool."""
    usual = TenantShare(id=f"inference/{name}", quota=name, priority=0, soft_blocks=0, hard_blocks=2**63 - 1)
    return msgspec.structs.replace(usual, **changes)


def config(*shares: TenantShare, usable: int = 1000, max_model_len: int = 32_768, **changes: Any) -> PodConfig:
    """A pool of `usable` blocks of 16 tokens and one null block, on one group of full attention."""
    usual = PodConfig(
        generation=1,
        digest="",
        pod=PodRef(namespace="inference", name="llama-8b-0", uid="u-0"),
        pool=PoolRef(namespace="inference", name="llama-8b"),
        model="llama-3.1-8b-instruct",
        engine_type="vLLM",
        kv=KvPlan(
            cap_blocks=usable + 1,
            null_blocks=1,
            block_tokens=BLOCK,
            bytes_per_block=2**21,
            max_model_len=max_model_len,
            groups=(LayerGroup(kind="Full", block_tokens=BLOCK),),
        ),
        ladder=Ladder(),
        tenants=shares,
    )
    return msgspec.structs.replace(usual, **changes)


def open_books(*shares: TenantShare, now: float = 0.0, **changes: Any) -> Books:
    """Books with `config(*shares, **changes)` in force and an engine that was seen idle at `now`."""
    books = Books(jitter=lambda: 0.0, sampling_period=PERIOD)
    books.configure(config(*shares, **changes), now)
    books.observe(sample(used=0), now)
    return books


def ask(name: str, blocks: int, *, output: int = BLOCK, copies: int = 1) -> Ask:
    """A request whose prompt and output limit together take `blocks` blocks, `output` tokens of them the output."""
    return streamed(f"inference/{name}", (Tokens(blocks * BLOCK - output),), copies, Tokens(output))


def admit(books: Books, name: str, blocks: int, now: float = 0.0, *, output: int = BLOCK) -> int:
    """The ticket of an admitted request of `blocks` blocks."""
    answer = books.ask(ask(name, blocks, output=output), now)
    assert isinstance(answer, Admitted), answer
    assert answer.reserved == blocks
    return answer.ticket


def answered(books: Books, produced: int, cause: Cause = Cause.FINISHED, *, times: int = FEWEST) -> None:
    """As many requests of tenant search as it takes to learn from them, each over after `produced` tokens."""
    for _ in range(times):
        answer = books.ask(streamed("inference/search", (Tokens(1),), 1, Tokens(produced + 1)), 0.0)
        assert isinstance(answer, Admitted)
        books.grow(answer.ticket, Tokens(produced), 0.0)
        books.release(answer.ticket, cause, 0.0)


def sample(
    used: int | None, *, blocks: int | None = None, waiting: int | None = 0, started: float | None = 1.0
) -> EngineSample:
    """A reading of an engine that holds `used` blocks, and does not say how large its pool is unless told."""
    return EngineSample(
        blocks=None if blocks is None else Blocks(blocks),
        block_tokens=Tokens(BLOCK),
        used_blocks=None if used is None else Blocks(used),
        running=0,
        waiting=waiting,
        started_at=started,
    )
