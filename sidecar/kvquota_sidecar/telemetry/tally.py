"""What the sidecar has seen, counted: plain numbers that only grow, read by whoever reports them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """How a request that went to the engine, or waited for it, was over."""

    ANSWERED = "answered"
    ENGINE_REFUSED = "engine_refused"  # it answered with a status of its own other than 200
    CLIENT_GONE = "client_gone"
    ENGINE_FAILED = "engine_failed"
    EVICTED = "evicted"  # ended for guaranteed work of another tenant
    ENDED = "ended"  # grown past its own tenant's hard
    DRAINED = "drained"
    FAULT = "fault"  # of this program


@dataclass(slots=True)
class Tally:
    """`requests` by (path of a route or "other", an Outcome or a refusal's code): both are small, fixed sets.

    `passed_unconfigured`: let through without a quota, for want of a config or an identity. `configs_rejected`: by
    reason. `underestimated_tokens`: by how much prompts were longer than estimated, summed. `tokenizer_asked`: requests
    near a border whose tokens the engine was to count; `tokenizer_late`: those whose count did not come in time.
    `guarantees_missed`: requests that waited in vain. `samples_*`: of the engine. `drains_taken_back`: begun by a hook,
    and followed by no signal.
    """

    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    passed_unconfigured: int = 0
    configs_adopted: int = 0
    configs_rejected: Counter[str] = field(default_factory=Counter)
    underestimated_tokens: int = 0
    tokenizer_asked: int = 0
    tokenizer_late: int = 0
    guarantees_missed: int = 0
    samples_taken: int = 0
    samples_failed: int = 0
    drains_taken_back: int = 0
