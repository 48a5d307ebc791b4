"""Which streams end with a mark, so that one that stops without it was cut.

Decides from the engine and the route. Pure.

Invariants:

1. A mark is asked for only where this kind of engine is known to send it on this route, in every version. Elsewhere a
   stream may end as it likes: an engine that leaves the mark out must not be taken for a broken one.

The marks themselves are known to `metering`: `[DONE]` of chats and completions, `message_stop` of Messages,
`response.completed` or `response.incomplete` of Responses. Looked at in vLLM 0.32, where an error within a stream has a
frame of its own, and in SGLang's source, whose every stream of these two routes ends so. The completions of llama.cpp's
server were its own before they became OpenAI's, so of it only chats. TensorRT-LLM and what merely speaks OpenAI's
protocol are not known.
"""

from __future__ import annotations

from typing import Final

_OLD_ROUTES: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
_NONE: Final[frozenset[str]] = frozenset()
_MARKED: Final[dict[str, frozenset[str]]] = {
    "vLLM": _OLD_ROUTES | {"/v1/messages", "/v1/responses"},
    "SGLang": _OLD_ROUTES,
    "LlamaCpp": frozenset({"/v1/chat/completions"}),
}


def marks_end(engine: str, path: str) -> bool:
    """Whether each whole stream of that route ends with a mark."""
    return path in _MARKED.get(engine, _NONE)
