"""Asks an engine for what the demonstration has to know of it."""

from __future__ import annotations

import asyncio
import time

from kvquota_cli.demo.scenario import EngineFacts
from kvquota_cli.embedded.engine_models import ask_models
from kvquota_cli.errors import CliError
from kvquota_sidecar.engines.fetching import EngineUnavailableError
from kvquota_sidecar.engines.sampling import MetricsSampler
from kvquota_sidecar.ledger.asking import EngineSample
from kvquota_sidecar.proxy.engine_side import EngineAddress, EnginePool


async def ask_engine(address: EngineAddress) -> EngineFacts:
    """Model, longest request and KV cache. Raises CliError where the engine does not say."""
    where = address.authority.decode()
    answer = await ask_models(address)
    if answer.trouble is not None:
        raise CliError(f"the engine at {where} does not answer ({answer.trouble}): start it, or leave --engine out")
    model = next(iter(answer.models or ()), None)
    sample = await _sample(address)
    if model is None or model.max_tokens is None or sample is None or sample.blocks is None or not sample.block_tokens:
        raise CliError(
            f"the engine at {where} does not say its model, max_model_len and KV blocks in /v1/models and /metrics as"
            " vLLM does: give another --engine, or leave it out"
        )
    return EngineFacts(model.name, sample.blocks, sample.block_tokens, model.max_tokens)


async def _sample(address: EngineAddress) -> EngineSample | None:
    async with asyncio.TaskGroup() as tasks:
        pool = EnginePool(address, tasks.create_task, time.monotonic)
        try:
            return await MetricsSampler(pool).sample()
        except EngineUnavailableError:
            return None
        finally:
            pool.close()
