"""The rules of docs/accounting.md on capacity, one test for each."""

from __future__ import annotations

from typing import Any

import pytest

from bookkeeping import answered, ask, config, open_books, sample, share, streamed
from injection_builders import target
from kvquota_api.amounts import Blocks
from kvquota_operator.injection.flags import engine_flags
from kvquota_operator.planning.blocks import usable_blocks
from kvquota_sidecar.ledger.asking import RankSample
from kvquota_sidecar.ledger.books import Admitted, Books, EngineSample
from kvquota_sidecar.refusals import Code
from ledger_figures import free, outcome, plan, pool, refused


@pytest.mark.parametrize(
    ("kind", "flag"),
    [
        pytest.param("vLLM", "--kv-cache-memory-bytes", id="in bytes"),
        pytest.param("SGLang", "--max-total-tokens", id="in tokens"),
    ],
)
def test_capacity_cap(kind: str, flag: str) -> None:
    given = target(model__maxModelLen=4096, engine__version=None, engine__plugin="Off", engine__type=kind)
    assert given.kv is not None
    words = engine_flags(given.pool.spec, given.kv)
    each = given.kv.bytes_per_block if kind == "vLLM" else given.kv.block_tokens
    assert int(words[words.index(flag) + 1]) == given.kv.cap_blocks * each


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        pytest.param(None, 1000, id="by the plan until something was measured"),
        pytest.param(1001, 1000, id="as planned, without the null block"),
        pytest.param(901, 900, id="the engine came up smaller"),
        pytest.param(1201, 1000, id="the engine came up larger: the cap holds"),
    ],
)
def test_capacity_usable(measured: int | None, expected: int) -> None:
    books = open_books(share())
    books.observe(sample(used=0, blocks=measured), 0.0)
    assert pool(books).usable == expected
    assert usable_blocks(config().kv, measured) == expected


def ranks(*used: int) -> EngineSample:
    told = tuple(RankSample(rank, Blocks(blocks), 0, 0) for rank, blocks in enumerate(used))
    return EngineSample(None, None, Blocks(sum(used)), 0, 0, 1.0, told)


def two_ranks(engine_type: str = "vLLM", **limits: Any) -> Books:
    """Two ranks of 100 blocks."""
    books = open_books(share(soft_blocks=160, **limits), kv=plan(ranks=2, cap_blocks=101), engine_type=engine_type)
    books.observe(ranks(0, 0), 0.0)
    return books


def test_ranks() -> None:
    books = two_ranks(hard_blocks=150)
    assert pool(books).usable == 200
    first = books.ask(ask("search", 60), 0.0)
    second = books.ask(ask("search", 60), 0.0)
    assert isinstance(first, Admitted)
    assert isinstance(second, Admitted)
    assert {first.rank, second.rank} == {0, 1}
    assert outcome(books, "search", 31) == Code.TENANT_KV_QUOTA_EXCEEDED, "hard holds over the sum"
    assert outcome(books, "search", 30) is None


def test_ranks__what_fits_no_rank_never_fits() -> None:
    books = two_ranks()
    assert outcome(books, "search", 101) == Code.REQUEST_EXCEEDS_KV_QUOTA
    answered(books, 16)
    books.observe(ranks(0, 0), 0.0)
    assert refused(books, streamed("inference/search", (16,), 1, 101 * 16)).code == Code.REQUEST_EXCEEDS_KV_QUOTA
    assert outcome(books, "search", 100) is None


def test_ranks__the_one_with_the_most_free_room_gets_it_and_pressure_is_the_largest() -> None:
    books = two_ranks()
    books.observe(ranks(50, 30), 0.0)
    answer = books.ask(ask("search", 10), 0.0)
    assert isinstance(answer, Admitted)
    assert answer.rank == 1
    assert pool(books).pressure_percent == 50


def test_ranks_unseen() -> None:
    books = two_ranks("SGLang")
    answer = books.ask(ask("search", 60), 0.0)
    assert isinstance(answer, Admitted)
    assert answer.rank is None
    assert (pool(books).usable, free(books)) == (200, 140)
