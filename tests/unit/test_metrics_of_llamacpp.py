"""What is read out of the metrics and the slots of llama.cpp's server."""

import json
from typing import Any

import pytest

from kvquota_api.amounts import Blocks, Tokens
from kvquota_sidecar.engines.llamacpp import Slot, read_llamacpp, read_slots, speaks_llamacpp
from kvquota_sidecar.engines.reading import Marks, Reading
from kvquota_sidecar.ledger.asking import EngineSample

METRICS = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 700
llamacpp:tokens_predicted_total 40
llamacpp:requests_processing 2
llamacpp:requests_deferred 3
"""
OLD = METRICS + "llamacpp:kv_cache_usage_ratio 0.9\nllamacpp:kv_cache_tokens 3600\n"
MARKS = Marks(constants=(b"814",), work=740.0)


def cells(**more: Any) -> EngineSample:
    return EngineSample(block_tokens=Tokens(1), **more)


BUSY = (Slot(True, 4096, 100), Slot(True, 4096, 50), Slot(False, 4096, 4000))
CASES: dict[str, tuple[str, bytes, tuple[Slot, ...], Reading | None]] = {
    "metrics and slots: what idle ones keep is only cached": (
        METRICS,
        b"814",
        BUSY,
        Reading(cells(used_blocks=Blocks(150), running=2, waiting=3), MARKS),
    ),
    "one slot is the whole pool": (
        METRICS,
        b"814",
        (Slot(False, 4096, 4000),),
        Reading(cells(blocks=Blocks(4096), used_blocks=Blocks(0), running=2, waiting=3), MARKS),
    ),
    "metrics alone: what is in use is not known": (METRICS, b"814", (), Reading(cells(running=2, waiting=3), MARKS)),
    "old metrics count what is cached, and are not read": (
        OLD,
        b"814",
        (),
        Reading(cells(running=2, waiting=3), MARKS),
    ),
    "what was found in a slot counts beside what was computed": (
        METRICS + "llamacpp:prompt_tokens_cached_total 300\n",
        b"814",
        (),
        Reading(
            cells(running=2, waiting=3, prompt_tokens=1000, cached_tokens=300),
            MARKS,
        ),
    ),
    "slots alone": ("", b"", BUSY, Reading(cells(used_blocks=Blocks(150), running=2))),
    "a slot that works and does not say what it holds": (
        "",
        b"",
        (Slot(True, 4096, 100), Slot(True)),
        Reading(cells(running=2)),
    ),
    "a slot of no size": ("", b"", (Slot(True, 0, 7),), Reading(cells(used_blocks=Blocks(7), running=1))),
    "neither": ("", b"", (), None),
    "another engine": ("vllm:num_requests_running 3\n", b"", (), None),
}


@pytest.mark.parametrize(("text", "start", "slots", "expected"), CASES.values(), ids=CASES)
def test_a_sample_holds_what_the_engine_says_and_nothing_else(
    text: str, start: bytes, slots: tuple[Slot, ...], expected: Reading | None
) -> None:
    assert read_llamacpp(text, start, slots) == expected


NEW = {"id": 0, "id_task": 7, "n_ctx": 4096, "speculative": False, "is_processing": True, "n_prompt_tokens": 100}
SLOTS = [
    pytest.param(json.dumps([NEW, {"is_processing": False}]).encode(), (Slot(True, 4096, 100), Slot(False)), id="new"),
    pytest.param(b'[{"id":0,"is_processing":true,"n_past":7,"n_ctx":2048}]', (Slot(True, 2048),), id="old"),
    pytest.param(b'[{"id":0,"state":1}]', (), id="so old that it does not say whether it works"),
    pytest.param(b'{"error":{"code":501,"message":"This server does not support slots"}}', (), id="switched off"),
    pytest.param(b'[{"is_processing":"yes"}]', (), id="other types"),
    pytest.param(b'[{"is_processing":true,"n_ctx":-1}]', (), id="a size below nothing"),
    pytest.param(b'[{"is_processing":true,"n_prompt_tokens":1e20}]', (), id="a size beyond all"),
    pytest.param(b"\xff\xfe", (), id="no text"),
    pytest.param(b"", (), id="nothing"),
    pytest.param(b'[{"is_processing":true,"next_token":' + b"[" * 100_000, (), id="nested without end"),
]


@pytest.mark.parametrize(("body", "slots"), SLOTS)
def test_slots_are_read_where_they_are_some(body: bytes, slots: tuple[Slot, ...]) -> None:
    assert read_slots(body) == slots


@pytest.mark.parametrize(
    ("text", "speaks"), [(METRICS, True), ("llamacpp:n_decode_total 3\n", False), ("vllm:a 1\n", False), ("", False)]
)
def test_its_metrics_are_recognised(text: str, speaks: bool) -> None:
    assert speaks_llamacpp(text) is speaks
