"""What real engines have said is read as what they then did: their answers lie in tests/data/expositions as they came.

Two requests of 1,115 and 1,126 tokens ran in llama.cpp; in vLLM eleven, and eight where it had two API servers.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from kvquota_api.amounts import Blocks, Tokens
from kvquota_sidecar.engines.llamacpp import read_llamacpp, read_slots, speaks_llamacpp
from kvquota_sidecar.engines.reading import Marks, Reading
from kvquota_sidecar.engines.vllm import read_vllm
from kvquota_sidecar.ledger.asking import EngineSample

FOLDER = Path(__file__).parents[1] / "data" / "expositions"
VLLM = EngineSample(
    blocks=Blocks(512), block_tokens=Tokens(32), preemptions=0, finished=0, prompt_tokens=0, cached_tokens=0
)


def worked(*, used: int, running: int, finished: int, looked_up: int, found: int) -> EngineSample:
    """Of vLLM, where nobody waits; `looked_up` and `found`: tokens of its prefix cache."""
    load = replace(VLLM, used_blocks=Blocks(used), running=running, waiting=0)
    return replace(load, finished=finished, prompt_tokens=looked_up, cached_tokens=found)


ONE_SERVER = Reading(
    worked(used=187, running=11, finished=3110, looked_up=571731, found=393056),
    Marks(starts=frozenset({1796052168.87}), work=592468.0),
)
TWO_SERVERS = Reading(
    worked(used=144, running=8, finished=16, looked_up=5600, found=2304),
    Marks(work=8112.0),  # processes of one port do not say when they started
)
# Processes of one port leave out a gauge that none of them has ever set: that is not known, and not zero.
FRESH = Reading(VLLM, Marks(work=0.0))
LLAMACPP = Reading(
    EngineSample(
        block_tokens=Tokens(1),
        used_blocks=Blocks(1115 + 1126),
        running=2,
        waiting=0,
        prompt_tokens=84 + 80,
        cached_tokens=80,
    ),
    Marks(constants=(b"69705059047",), work=114.0),
)


def recorded(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("vllm-0.32.0.txt", ONE_SERVER, id="one API server"),
        pytest.param("vllm-0.32.0-two-api-servers.txt", TWO_SERVERS, id="two API servers"),
        pytest.param("vllm-0.32.0-two-api-servers-fresh.txt", FRESH, id="two API servers before the first request"),
    ],
)
def test_what_vllm_has_said_is_read_whole(name: str, expected: Reading) -> None:
    assert read_vllm(recorded(name)) == expected


def test_what_llamacpp_has_said_is_read_whole() -> None:
    text = recorded("llamacpp-b11549.txt")
    assert speaks_llamacpp(text)
    assert read_llamacpp(text, b"69705059047", read_slots(recorded("llamacpp-b11549-slots.json").encode())) == LLAMACPP
