"""Requests that have no output, read as vLLM 0.32 reads them, and what is answered: embeddings, scores, rankings.

The numbers in the answers mean nothing; how many tokens were computed does. It does not know HTTP or time.
"""

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvquota_fakeengine import tokens
from kvquota_fakeengine.requests import prompts_of, refuse_body, require_fit, require_model, salt_of
from kvquota_fakeengine.sequences import Finish, Work
from kvquota_fakeengine.settings import EngineSettings
from kvquota_fakeengine.wire import Document, Envelope

_DIMENSIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingRequest:
    """`prompts` are computed one by one; `documents` are the texts that a ranking names."""

    prompts: tuple[tuple[int, ...], ...]
    works: tuple[Work, ...]
    documents: tuple[str, ...] = ()
    top: int | None = None
    as_text: bool = False

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)


def read_embedding(document: Mapping[str, Any], settings: EngineSettings) -> PoolingRequest:
    """`input`: a text, token ids, or a list of either."""
    require_model(document, settings)
    prompts = prompts_of(document.get("input"), "input")
    return _request(prompts, document, settings, as_text=document.get("encoding_format") == "base64")


def read_score(document: Mapping[str, Any], settings: EngineSettings) -> PoolingRequest:
    """One text with each of the others, or as many with as many."""
    require_model(document, settings)
    first, second = (
        _texts(document, ("queries", "text_1", "data_1")),
        _texts(document, ("documents", "text_2", "data_2")),
    )
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise refuse_body("Input lengths must be either 1:1, 1:N or N:N")
    return _request(_paired(first, second), document, settings)


def read_rerank(document: Mapping[str, Any], settings: EngineSettings) -> PoolingRequest:
    """`query` with each of `documents`."""
    require_model(document, settings)
    query, documents = _texts(document, ("query",)), _texts(document, ("documents",))
    pairs = _paired(query * len(documents), documents)
    top = document.get("top_n")
    kept = top if isinstance(top, int) and top > 0 else None
    return _request(pairs, document, settings, documents=tuple(documents), top=kept)


def embeddings(envelope: Envelope, asked: PoolingRequest) -> Document:
    values = [float(number) / _DIMENSIONS for number in range(_DIMENSIONS)]
    vector = base64.b64encode(struct.pack(f"<{_DIMENSIONS}f", *values)).decode() if asked.as_text else values
    data = [{"index": index, "object": "embedding", "embedding": vector} for index in range(len(asked.prompts))]
    return _listed(envelope, data, asked)


def scores(envelope: Envelope, asked: PoolingRequest) -> Document:
    data = [{"index": index, "object": "score", "score": _score(index)} for index in range(len(asked.prompts))]
    return _listed(envelope, data, asked)


def ranking(envelope: Envelope, asked: PoolingRequest) -> Document:
    results = [
        {"index": index, "document": {"text": text, "multi_modal": None}, "relevance_score": _score(index)}
        for index, text in enumerate(asked.documents)
    ]
    usage = {"prompt_tokens": asked.prompt_tokens, "total_tokens": asked.prompt_tokens}
    return {"id": envelope.id, "model": envelope.model, "usage": usage, "results": results[: asked.top]}


def _listed(envelope: Envelope, data: list[Document], asked: PoolingRequest) -> Document:
    usage: Document = {"prompt_tokens": asked.prompt_tokens, "total_tokens": asked.prompt_tokens}
    usage |= {"completion_tokens": 0, "prompt_tokens_details": None, "completion_tokens_details": None}
    head = {"id": envelope.id, "object": "list", "created": envelope.created, "model": envelope.model}
    return head | {"data": data, "usage": usage}


def _score(index: int) -> float:
    return 1 / (1 + index)


def _request(
    prompts: tuple[tuple[int, ...], ...],
    document: Mapping[str, Any],
    settings: EngineSettings,
    *,
    documents: tuple[str, ...] = (),
    top: int | None = None,
    as_text: bool = False,
) -> PoolingRequest:
    salt = salt_of(document)
    for prompt in prompts:
        require_fit(len(prompt), settings.max_model_len)
    works = tuple(Work(prompt=prompt, output_tokens=0, finish=Finish.STOP, salt=salt, priority=0) for prompt in prompts)
    return PoolingRequest(prompts=prompts, works=works, documents=documents, top=top, as_text=as_text)


def _texts(document: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    value = next((document[name] for name in names if name in document), None)
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise refuse_body(f"Input should be a text or a list of texts: {names[0]}")
    return texts


def _paired(first: Sequence[str], second: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Question and document are one prompt, as cross-encoders take them."""
    return tuple(tuple(tokens.encode(one + other)) for one, other in zip(first, second, strict=True))
