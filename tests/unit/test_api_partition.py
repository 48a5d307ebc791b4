"""How a card is divided, and when the parts do not fit."""

import dataclasses
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from kvquota_api.amounts import Bytes
from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.inputs import EngineInputs, EngineName
from kvquota_api.memory.partition import Budget, Partition, Parts, budget, estimated_activation, non_torch, overflow

GIB = 2**30
FULL = Partition(
    card=Bytes(80 * GIB),
    weights=Bytes(15 * GIB),
    activation=Bytes(6 * GIB),
    kv_pool=Bytes(52 * GIB),
    safety_margin=Bytes(6 * GIB),
    other=Bytes(GIB),
)
CARD = Bytes(80 * GIB)
PARTS = Parts(
    weights=Bytes(16 * GIB), activation=Bytes(5 * GIB), other=Bytes(3 * GIB), graphs=Bytes(GIB), assumptions=()
)


def test_parts_that_fill_the_card_fit() -> None:
    assert overflow(FULL) is None
    assert (FULL.total, FULL.free) == (80 * GIB, 0)


def test_one_byte_too_much_is_said_with_all_numbers() -> None:
    assert str(overflow(dataclasses.replace(FULL, kv_pool=Bytes(52 * GIB + 1)))) == (
        "the parts of one card sum to 80 GiB, 1 B more than its 80 GiB: weights 15 GiB + activation 6 GiB"
        " + kvPool 52 GiB + other 1 GiB + safetyMargin 6 GiB"
    )


@pytest.mark.parametrize(
    ("vocabulary", "logged"),
    [(201_088, 7.38), (128_256, 4.76), (151_936, 5.56)],
    ids=["gpt-oss", "Llama 8B", "Qwen3 0.6B"],
)
def test_activation_is_near_what_vllm_logged_for_1024_sequences(vocabulary: int, logged: float) -> None:
    assert 0.98 < estimated_activation(vocabulary, 1024) / GIB / logged < 1.06


@pytest.mark.parametrize(
    ("tensor", "gib"),
    [(1, 0.15), (2, 0.55), (3, 1.4), (4, 1.4), (8, 2.1), (16, 2.1)],
    ids=["alone", "in pairs", "between known sizes", "four", "eight", "more than any log"],
)
def test_more_gpus_need_more_beside_the_model(tensor: int, gib: float) -> None:
    assert round(non_torch(tensor) / GIB, 2) == gib


def vllm(version: str | None) -> EngineInputs:
    return EngineInputs("vLLM", version=version)


HALF = Fraction(1, 2)
BUDGETS: dict[str, tuple[EngineInputs, Fraction | None, int, int, tuple[str, ...]]] = {
    "vLLM takes CUDA graphs off its budget": (vllm("0.32.0"), HALF, (40 - 16 - 5 - 3) * GIB, 40 * GIB, ()),
    "vLLM does so from 0.21": (vllm("0.21.0"), HALF, (40 - 16 - 5 - 3) * GIB, 40 * GIB, ()),
    "vLLM before 0.21 leaves CUDA graphs outside of it": (
        vllm("0.20.1"),
        HALF,
        (40 - 16 - 5 - 2) * GIB,
        39 * GIB,
        (),
    ),
    "vLLM uses 92 % by default": (
        vllm(None),
        None,
        -(-80 * GIB * 92 // 100) - 24 * GIB,
        80 * GIB * 8 // 100,
        ("--gpu-memory-utilization is the engine's default: 0.92",),
    ),
    "vLLM uses 92 % from 0.20": (
        vllm("0.20.0"),
        None,
        -(-80 * GIB * 92 // 100) - 23 * GIB,
        80 * GIB * 8 // 100 - GIB,
        ("--gpu-memory-utilization is the engine's default: 0.92",),
    ),
    "vLLM up to 0.19 used 90 %": (
        vllm("0.19.0"),
        None,
        (72 - 16 - 5 - 2) * GIB,
        7 * GIB,
        ("--gpu-memory-utilization is the engine's default: 0.90",),
    ),
    "weights larger than the budget leave less than nothing": (vllm(None), Fraction(1, 10), -16 * GIB, 72 * GIB, ()),
    "SGLang takes a part of what is free before loading": (
        EngineInputs("SGLang"),
        HALF,
        (39 - 16) * GIB,
        (39 - 5 - 1) * GIB,
        (),
    ),
    "SGLang takes 88 % by default": (
        EngineInputs("SGLang"),
        None,
        -(-78 * GIB * 88 // 100) - 16 * GIB,
        78 * GIB - -(-78 * GIB * 88 // 100) - 6 * GIB,
        (
            "--mem-fraction-static is the engine's default: 0.88",
            "SGLang lowers it for large chunks and groups: its log says by how much",
        ),
    ),
    "TensorRT-LLM takes a part of what is free after loading": (
        EngineInputs("TensorRTLLM"),
        HALF,
        28 * GIB,
        28 * GIB,
        (),
    ),
    "TensorRT-LLM takes 90 % of it by default": (
        EngineInputs("TensorRTLLM"),
        None,
        56 * GIB * 9 // 10,
        56 * GIB - 56 * GIB * 9 // 10,
        ("free_gpu_memory_fraction is the engine's default: 0.90",),
    ),
    "llama.cpp has no budget": (EngineInputs("LlamaCpp"), None, (80 - 24) * GIB, 0, ()),
    "llama.cpp may be given a part": (EngineInputs("LlamaCpp"), HALF, (40 - 24) * GIB, 40 * GIB, ()),
}


@pytest.mark.parametrize(("inputs", "part", "kv_bytes", "margin", "notes"), BUDGETS.values(), ids=BUDGETS)
def test_an_engine_leaves_for_its_cache(
    inputs: EngineInputs, part: Fraction | None, kv_bytes: int, margin: int, notes: tuple[str, ...]
) -> None:
    assert budget(inputs, CARD, PARTS, part) == Budget(kv_bytes, Bytes(margin), notes)


@pytest.mark.parametrize("engine", ["vLLM", "SGLang"])
def test_what_an_engine_leaves_of_the_card_is_never_less_than_nothing(engine: EngineName) -> None:
    inputs = EngineInputs(engine, version="0.11.0" if engine == "vLLM" else None)

    assert budget(inputs, CARD, PARTS, Fraction(1)).safety_margin == 0


def test_on_the_cpu_there_is_no_card_to_take_a_part_of() -> None:
    with pytest.raises(EngineUnknownError, match="on the CPU the size of the KV cache is stated"):
        budget(EngineInputs("vLLM", platform="cpu"), CARD, PARTS, None)


DATA = Path(__file__).resolve().parents[1] / "data" / "memory" / "observations.json"
NEEDED = ("gpu_mem_gib", "gpu_memory_utilization", "weights_gib", "activation_gib", "non_torch_gib", "avail_kv_gib")
MEASURED = [row for row in json.loads(DATA.read_text()) if all(row.get(name) is not None for name in NEEDED)]


@pytest.mark.parametrize("row", MEASURED, ids=[row["id"] for row in MEASURED])
def test_the_identity_closes_on_what_an_engine_logged(row: dict[str, Any]) -> None:
    """All figures are printed with two decimals; the utilisation is often rounded to two for the log."""
    sizes = {name: Bytes(int(row[f"{name}_gib"] * GIB)) for name in ("weights", "activation", "non_torch")}
    parts = Parts(sizes["weights"], sizes["activation"], sizes["non_torch"], Bytes(0), ())
    card, part = Bytes(int(row["gpu_mem_gib"] * GIB)), Fraction(str(row["gpu_memory_utilization"]))

    left = budget(vllm("0.11.0"), card, parts, part).kv_bytes / GIB

    assert abs(left - row["avail_kv_gib"]) <= 0.005 * row["gpu_mem_gib"] + 0.02
