"""What the demonstration does to an engine of a given size.

Decides the tenants, their quotas and what they send. Pure.

Invariants:

1. The flood could fill the engine's whole KV cache, and passes its hard quota long before; every request of it fits
   that quota, so it is refused for now and never for good.
2. What steady sends at any time fits its soft quota, so it is guaranteed.

It does not know how fast the engine is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import yaml

from kvquota_api.amounts import Bytes
from kvquota_api.meta import API_KEY_SECRET_TYPE, API_VERSION
from kvquota_api.pod_config import Enforcement

POOL: Final = "demo"
STEADY: Final = "steady"
FLOOD: Final = "flood"
TENANTS: Final = (STEADY, FLOOD)
APP_LABEL: Final = {"app": "kvquota-demo"}

STEADY_SOFT_PERCENT: Final = 25
STEADY_HARD_PERCENT: Final = 50
FLOOD_SOFT_PART: Final = 10  # of its hard: so that most of what it runs is borrowed
FEWEST_TOKENS: Final = 4096  # of the KV cache: below it a single flooding request is hardly longer than a short one
MOST_CLIENTS: Final = 256  # of the flood: what an engine runs at the same time by default

# What the plan assumes of the card. The KV cache is as the engine says; the rest only has to leave room for it.
_PRESET: Final = "llama-3.2-1b"
_BYTES_PER_TOKEN: Final = 32_768  # of that preset in bf16: 16 layers x 8 KV heads x 64 x 2 (K and V) x 2 B
_BESIDE_KV: Final = Bytes(16 * 2**30)
_GIB: Final = 2**30


class UnfitEngineError(ValueError):
    """An engine that the demonstration cannot be shown on; the text says why and what would do."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine says of itself: `blocks` with the null block, `max_tokens` of one request."""

    model: str
    blocks: int
    block_tokens: int
    max_tokens: int

    @property
    def usable_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return (self.blocks - 1) * self.block_tokens


@dataclass(frozen=True, slots=True)
class Habit:
    """What one tenant sends: prompts of `words` (about a token each) and at most `output_tokens`, from `clients` that
    pause between an answer and the next request."""

    words: int
    output_tokens: int
    clients: int
    pause_seconds: float


@dataclass(frozen=True, slots=True)
class Scenario:
    facts: EngineFacts
    steady: Habit
    flood: Habit
    flood_hard_tokens: int

    def habit(self, tenant: str) -> Habit:
        return self.steady if tenant == STEADY else self.flood


def scenario_of(facts: EngineFacts) -> Scenario:
    """The demonstration for this engine. Raises UnfitEngineError."""
    usable = facts.usable_tokens
    if usable < FEWEST_TOKENS:
        raise UnfitEngineError(
            f"the KV cache of the engine holds {usable} tokens, too few to show anything: start it with at least"
            f" {FEWEST_TOKENS}, or leave --engine out"
        )
    output = max(16, min(256, facts.max_tokens // 16, usable // 64))
    words = min(facts.max_tokens // 2, usable // 8)
    clients = min(MOST_CLIENTS, max(8, -(-usable * 3 // (2 * (words + output)))))
    return Scenario(
        facts=facts,
        steady=Habit(words=min(40, facts.max_tokens // 4), output_tokens=16, clients=3, pause_seconds=0.3),
        flood=Habit(words=words, output_tokens=output, clients=clients, pause_seconds=0.15),
        flood_hard_tokens=min(usable // 2, (words + output) * clients // 3),
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """`keys`: API key by tenant. `admin_port`: of the sidecar, None for the usual one."""

    namespace: str
    keys: dict[str, str]
    admin_port: int | None = None


def manifests(scenario: Scenario, setting: Setting, enforcement: Enforcement) -> list[dict[str, Any]]:
    """The Secrets, the ModelPool and the TenantQuotas, as a person would write them."""
    hard = scenario.flood_hard_tokens
    return [
        *(_secret(tenant, setting) for tenant in TENANTS),
        model_pool(scenario, setting, enforcement),
        _quota(STEADY, setting, 100, {"percent": STEADY_SOFT_PERCENT}, {"percent": STEADY_HARD_PERCENT}),
        _quota(FLOOD, setting, 10, {"tokens": hard // FLOOD_SOFT_PART}, {"tokens": hard}),
    ]


def as_yaml(objects: list[dict[str, Any]]) -> str:
    """The objects as one file."""
    return yaml.safe_dump_all(objects, sort_keys=False)


def model_pool(scenario: Scenario, setting: Setting, enforcement: Enforcement) -> dict[str, Any]:
    """The ModelPool: the engine as it came up."""
    facts = scenario.facts
    tokens = facts.blocks * facts.block_tokens
    card = -(-(tokens * _BYTES_PER_TOKEN + _BESIDE_KV) * 10 // (9 * _GIB))  # a tenth of it is the safety margin's
    return {
        "apiVersion": API_VERSION,
        "kind": "ModelPool",
        "metadata": {"name": POOL, "namespace": setting.namespace},
        "spec": {
            "selector": {"matchLabels": dict(APP_LABEL)},
            "model": {"name": facts.model, "config": {"preset": _PRESET}, "maxModelLen": facts.max_tokens},
            "engine": {"type": "vLLM", "blockSize": facts.block_tokens},
            "gpu": {"memory": f"{card}Gi"},
            "memory": {"kvPool": {"tokens": tokens}},
            "enforcement": enforcement,
            **({"sidecar": {"adminPort": setting.admin_port}} if setting.admin_port else {}),
        },
    }


def _secret(tenant: str, setting: Setting) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": API_KEY_SECRET_TYPE,
        "metadata": {"name": f"{tenant}-api-key", "namespace": setting.namespace},
        "stringData": {"key": setting.keys[tenant]},
    }


def _quota(tenant: str, setting: Setting, priority: int, soft: dict[str, int], hard: dict[str, int]) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "TenantQuota",
        "metadata": {"name": tenant, "namespace": setting.namespace},
        "spec": {
            "tenant": tenant,
            "modelPoolRef": {"name": POOL},
            "priority": priority,
            "kv": {"soft": soft, "hard": hard},
            "identity": {"apiKeys": [{"secretRef": {"name": f"{tenant}-api-key", "key": "key"}}]},
        },
    }
