"""What the engine says of itself as llama.cpp's server does: a slot for each sequence that may run at once."""

from collections.abc import Sequence
from typing import Any

from kvquota_fakeengine.exposition import Family
from kvquota_fakeengine.scheduling import Scheduler
from kvquota_fakeengine.settings import EngineSettings

_PREFIX = "llamacpp:"

Document = dict[str, Any]


def llamacpp_families(schedulers: Sequence[Scheduler]) -> list[Family]:
    """What the scheduler stands at. Nothing tells what of the cache is in use."""
    totals = [each.totals for each in schedulers]
    return [
        _family("prompt_tokens_total", "counter", "Prompt tokens processed.", sum(t.prompt_tokens for t in totals)),
        _family("tokens_predicted_total", "counter", "Tokens generated.", sum(t.generation_tokens for t in totals)),
        _family("requests_processing", "gauge", "Requests processing.", sum(len(each.running) for each in schedulers)),
        _family("requests_deferred", "gauge", "Requests deferred.", sum(len(each.waiting) for each in schedulers)),
    ]


def slots(schedulers: Sequence[Scheduler], settings: EngineSettings) -> list[Document]:
    """The answer to GET /slots: the busy ones first. `n_prompt_tokens` is all that a slot holds."""
    cells = (settings.blocks - 1) * settings.block_tokens
    held = [len(sequence.tokens) for each in schedulers for sequence in each.running]
    count = max(settings.max_sequences, len(held))
    busy = [{"is_processing": True, "n_prompt_tokens": tokens} for tokens in held]
    idle: list[Document] = [{"is_processing": False} for _ in range(count - len(held))]
    return [{"id": number, "n_ctx": cells // count} | slot for number, slot in enumerate([*busy, *idle])]


def props(settings: EngineSettings) -> Document:
    """The answer to GET /props, as far as the cache is concerned."""
    cells = (settings.blocks - 1) * settings.block_tokens
    each = {"n_ctx": cells // settings.max_sequences}
    return {"total_slots": settings.max_sequences, "default_generation_settings": each, "model_alias": settings.model}


def _family(name: str, kind: str, told: str, value: float) -> Family:
    return Family(_PREFIX + name, kind, told, [({}, value)])
