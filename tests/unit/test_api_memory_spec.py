"""What a pool states of its card, in numbers."""

from __future__ import annotations

from typing import Any

import pytest

from contract_objects import pool
from kvquota_api.memory_spec import Gpu, Memory
from kvquota_api.validation import parse_model_pool


def spec(**changes: Any) -> tuple[Gpu, Memory]:
    parsed = parse_model_pool(pool(**changes)).spec
    return parsed.gpu, parsed.memory


def test_what_is_stated_is_read_in_bytes() -> None:
    parts = {"weights": "14.5Gi", "activation": "6Gi", "other": "1500M", "kvPool": {"bytes": "36Gi"}}

    gpu, memory = spec(memory=parts, gpu__memory="79.18Gi")

    assert (gpu.memory_bytes, memory.weight_bytes, memory.activation_bytes, memory.other_bytes) == (
        85_018_877_625,
        15_569_256_448,
        6_442_450_944,
        1_500_000_000,
    )
    assert (memory.kv_pool.byte_count, memory.kv_pool.hundredths, memory.kv_pool.token_count) == (
        38_654_705_664,
        None,
        None,
    )


def test_what_is_not_stated_is_to_be_counted_or_estimated() -> None:
    gpu, memory = spec()

    assert (memory.weight_bytes, memory.activation_bytes, memory.other_bytes) == (None, None, None)
    assert (memory.kv_pool.byte_count, memory.kv_pool.hundredths, memory.kv_pool.token_count) == (None, 30_00, None)
    assert (memory.safety_margin_percent, gpu.count, gpu.platform) == (8, 1, None)


@pytest.mark.parametrize(
    ("kv_pool", "numbers"),
    [
        pytest.param({"percent": "2.5"}, (2_50, None), id="percent in hundredths"),
        pytest.param({"tokens": 7}, (None, 7), id="tokens"),
        pytest.param({"remainder": {}}, (None, None), id="the remainder has no number"),
    ],
)
def test_a_kv_pool_is_a_number_in_its_unit(kv_pool: dict[str, Any], numbers: tuple[int | None, int | None]) -> None:
    _, memory = spec(memory={"kvPool": kv_pool})

    assert (memory.kv_pool.hundredths, memory.kv_pool.token_count) == numbers
