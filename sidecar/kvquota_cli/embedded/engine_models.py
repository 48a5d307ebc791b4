"""Asks an engine which models it serves."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any, Final

from kvquota_sidecar.engines.fetching import EngineUnavailableError, fetch
from kvquota_sidecar.proxy.engine_side import EngineAddress, EnginePool

MODELS_PATH: Final = "/v1/models"
ASK_SECONDS: Final = 2.0
_MAX_BYTES: Final = 2**20
_KEY_WANTED: Final = (401, 403)


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A model as the engine lists it; `max_tokens` of prompt and output, None where it does not say."""

    name: str
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """`models`: None where the engine does not list any, and then `oddity` says what it answered instead. `trouble`:
    why it did not answer, None where it did."""

    models: tuple[EngineModel, ...] | None = None
    trouble: str | None = None
    oddity: str | None = None

    @property
    def names(self) -> tuple[str, ...] | None:
        """What clients may send as "model"; None where that is not known."""
        return None if self.models is None else tuple(each.name for each in self.models)


async def ask_models(address: EngineAddress) -> EngineAnswer:
    """GET /v1/models, once."""
    async with asyncio.TaskGroup() as tasks:
        pool = EnginePool(address, tasks.create_task, time.monotonic)
        try:
            fetched = await fetch(pool, MODELS_PATH, max_bytes=_MAX_BYTES, seconds=ASK_SECONDS)
        except EngineUnavailableError as error:
            return EngineAnswer(trouble=str(error))
        finally:
            pool.close()
    models = _models(fetched.body) if fetched.status == 200 else None
    return EngineAnswer(models, oddity=None if models is not None else _oddity(address, fetched.status))


def _oddity(address: EngineAddress, status: int) -> str:
    where = address.authority.decode()
    if status in _KEY_WANTED:
        return f"{where} answers {MODELS_PATH} with {status}: it wants a key of its own, so its models are not known"
    what = f"with {status}" if status != 200 else "without a list of models"
    return f"{where} answers {MODELS_PATH} {what}: is this an engine? Check --engine"


def _models(body: bytes) -> tuple[EngineModel, ...] | None:
    try:
        listed: Any = json.loads(body)["data"]
        return tuple(EngineModel(str(each["id"]), _tokens(each.get("max_model_len"))) for each in listed)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _tokens(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
