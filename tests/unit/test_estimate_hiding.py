"""Which streams do not show what their engine makes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvquota_sidecar.estimate.hiding import MAX_HELD_BACK
from kvquota_sidecar.estimate.reading import SMALL
from kvquota_sidecar.estimate.shape import Shape, read_shape

HIDING: dict[str, dict[str, Any]] = {
    "what is thought has no frame": {"include_reasoning": False},
    "no, as an engine may read it": {"include_reasoning": 0},
    "no, as a text": {"include_reasoning": "off"},
    "nothing, where a yes or no belongs": {"include_reasoning": None},
    "what is thought comes in one frame": {"stream_reasoning": False},
    "beams come in one frame": {"use_beam_search": True},
    "yes, as an engine may read it": {"use_beam_search": 1},
    "only tokens without text": {"allowed_token_ids": [2], "ignore_eos": True},
    "tokens without text before all others": {"logit_bias": {"2": 100}},
    "text is held back for a long stop": {"stop": ["x" * MAX_HELD_BACK]},
    "text is held back for long stops of messages": {"stop_sequences": ["x" * MAX_HELD_BACK]},
}
SHOWING: dict[str, dict[str, Any]] = {
    "nothing of that": {},
    "what is thought is shown": {"include_reasoning": True, "stream_reasoning": True},
    "no beams": {"use_beam_search": False},
    "no tokens are chosen": {"allowed_token_ids": None, "logit_bias": {}},
    "an empty list of tokens": {"allowed_token_ids": []},
    "a usual stop": {"stop": ["\n\nHuman:", "END"]},
    "what was looked at and is harmless": {"echo": True, "ignore_eos": True, "min_tokens": 9, "return_token_ids": True},
}


def hidden(fields: dict[str, Any], *, stream: bool = True, filler: int = 0) -> bool:
    message = {"role": "user", "content": "x" * filler}
    body = json.dumps({"messages": [message], "stream": stream, **fields}, separators=(",", ":")).encode()
    shape = read_shape("/v1/chat/completions", body, engine="vLLM")
    assert isinstance(shape, Shape)
    return not shape.shows_output


@pytest.mark.parametrize("filler", [0, SMALL], ids=["short", "long"])
@pytest.mark.parametrize("fields", HIDING.values(), ids=HIDING)
def test_a_stream_that_may_hide_output_counts_as_hidden(fields: dict[str, Any], filler: int) -> None:
    assert hidden(fields, filler=filler)
    assert hidden(fields, stream=False, filler=filler), "what does not come as a stream is unseen in any case"


@pytest.mark.parametrize("filler", [0, SMALL], ids=["short", "long"])
@pytest.mark.parametrize("fields", SHOWING.values(), ids=SHOWING)
def test_a_usual_stream_does_not(fields: dict[str, Any], filler: int) -> None:
    assert not hidden(fields, filler=filler)
