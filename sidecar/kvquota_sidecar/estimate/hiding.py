"""Whether a stream shows what its engine makes, or hides some of it until its end.

Decides from the fields of a body. Pure.

Invariants:

1. A stream whose fields let tokens pass without a frame counts as one that shows nothing: what it may become is
   reserved from the start. A field that is not surely harmless counts as if it hid.
2. It is never taken for hidden where none of these fields stands: a usual stream shows a frame for each token.

Looked at in vLLM 0.32 (protocol and serving of chats, completions, responses and messages):
* hide: `include_reasoning` (what is thought has no frame), `use_beam_search` (a chat has one frame, at its end),
  `allowed_token_ids` and `logit_bias` (may force tokens without text, which parsers of reasoning and tools swallow),
  long `stop` texts (text is held back until it can be none of them). By its documentation SGLang's `stream_reasoning`.
* taken out of every body, see `steering`: `stream_interval` (tokens of one frame).
* show all: `echo` (one frame more), `return_token_ids`, `logprobs` (frames more, none less), `min_tokens`,
  `ignore_eos`, `skip_special_tokens` (a frame without text counts), `parallel_tool_calls` (an empty delta counts),
  `thinking` of messages (its `display` is not heeded), `truncate_prompt_tokens`, `repetition_detection`.

It does not know what the engine's own parsers hold back, nor how many tokens it puts into a frame: see `pace`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

MAX_HELD_BACK: Final = 256  # bytes of all stop texts: so many tokens are late at most; chats' are a few words
_SHOWN_IF_TRUE: Final = ("include_reasoning", "stream_reasoning")
_SHOWN_IF_OFF: Final = ("use_beam_search",)
_SHOWN_IF_ABSENT: Final = ("allowed_token_ids", "logit_bias")
_STOPS: Final = ("stop", "stop_sequences")
_NAMES: Final = frozenset((*_SHOWN_IF_TRUE, *_SHOWN_IF_OFF, *_SHOWN_IF_ABSENT, *_STOPS))
_ENCODER: Final = msgspec.json.Encoder()


def hides_output(fields: Mapping[str, Any]) -> bool:
    """`fields`: of a body, as `read_object` gives them."""
    if _NAMES.isdisjoint(fields):
        return False
    texts = {name: bytes(_ENCODER.encode(fields[name])) for name in _NAMES if name in fields}
    if any(texts.get(name, b"true") != b"true" for name in _SHOWN_IF_TRUE):
        return True
    if any(texts.get(name, b"false") != b"false" for name in _SHOWN_IF_OFF):
        return True
    if any(texts.get(name, b"null") not in {b"null", b"{}", b"[]"} for name in _SHOWN_IF_ABSENT):
        return True
    return sum(len(texts.get(name, b"")) for name in _STOPS) > MAX_HELD_BACK
