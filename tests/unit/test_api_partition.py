"""How a card is divided, and when the parts do not fit."""

import dataclasses

import pytest

from kvquota_api.amounts import Bytes
from kvquota_api.memory.errors import PartitionTooLargeError
from kvquota_api.memory.partition import (
    Partition,
    check_fits,
    default_max_num_seqs,
    estimated_activation,
    estimated_other,
)

GIB = 2**30
FULL = Partition(
    card=Bytes(80 * GIB),
    weights=Bytes(15 * GIB),
    activation=Bytes(6 * GIB),
    kv_pool=Bytes(52 * GIB),
    safety_margin=Bytes(6 * GIB),
    other=Bytes(GIB),
)


def test_parts_that_fill_the_card_fit() -> None:
    check_fits(FULL, "")

    assert (FULL.total, FULL.free) == (80 * GIB, 0)


def test_one_byte_too_much_is_said_with_all_numbers_and_the_ways_out() -> None:
    with pytest.raises(PartitionTooLargeError) as raised:
        check_fits(dataclasses.replace(FULL, kv_pool=Bytes(52 * GIB + 1)), "Buy more.")

    assert str(raised.value) == (
        "the parts of one card sum to 80 GiB, 1 B more than its 80 GiB: weights 15 GiB + activation 6 GiB"
        " + kvPool 52 GiB + other 1 GiB + safetyMargin 6 GiB. Buy more."
    )


@pytest.mark.parametrize(
    ("vocabulary", "logged"),
    [(201_088, 7.38), (128_256, 4.76), (151_936, 5.56)],
    ids=["gpt-oss", "Llama 8B", "Qwen3 0.6B"],
)
def test_activation_is_near_what_vllm_logged_for_1024_sequences(vocabulary: int, logged: float) -> None:
    assert 0.98 < estimated_activation(vocabulary, 1024) / GIB / logged < 1.06


def test_a_large_card_runs_more_sequences_by_default() -> None:
    assert default_max_num_seqs(Bytes(80 * GIB)) == 1024
    assert default_max_num_seqs(Bytes(48 * GIB)) == 256


@pytest.mark.parametrize(
    ("tensor", "gib"),
    [(1, 1.15), (2, 1.55), (3, 2.4), (4, 2.4), (8, 3.1), (16, 3.1)],
    ids=["alone", "in pairs", "between known sizes", "four", "eight", "more than any log"],
)
def test_more_gpus_need_more_beside_the_model(tensor: int, gib: float) -> None:
    assert round(estimated_other(tensor) / GIB, 2) == gib
