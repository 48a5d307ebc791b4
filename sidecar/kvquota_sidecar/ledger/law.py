"""What is in force: a config, and what it draws on the pool that the engine measured."""

from __future__ import annotations

from dataclasses import dataclass

from kvquota_api.amounts import Blocks, Tokens
from kvquota_api.memory.worth import Worth
from kvquota_api.pod_config import PodConfig
from kvquota_sidecar.admission.thresholds import Lines, draw
from kvquota_sidecar.ledger.cost import Tariff


@dataclass(frozen=True, slots=True)
class Law:
    """`tariff`: what requests cost. `worth`: what blocks are worth in tokens. `shadow`: the whole pool only counts.
    `max_model_len`: of the engine."""

    config: PodConfig
    lines: Lines
    tariff: Tariff
    worth: Worth
    shadow: bool
    max_model_len: Tokens


def law_of(config: PodConfig, measured: Blocks | None) -> Law:
    """`measured`: blocks of one rank as the engine has them, its null block included; None: not known yet."""
    tariff = Tariff(config.kv.groups, config.kv.batch_tokens, shares_prefixes=config.kv.shares_prefixes)
    shadow, longest = config.enforcement == "Shadow", Tokens(config.kv.max_model_len)
    return Law(config, draw(config, measured), tariff, config.kv.worth, shadow, longest)


def pools_of(config: PodConfig) -> int:
    """How many pools a request can be sent to: vLLM takes the rank with the request; others choose by themselves, and
    then all ranks count as one pool."""
    return config.kv.ranks if config.engine_type == "vLLM" else 1
