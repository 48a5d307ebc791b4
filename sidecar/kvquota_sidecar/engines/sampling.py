"""The one sampler there is: it asks an engine in the dialect that the engine speaks.

The dialect is that of the engine's type where the config says one that has a dialect of its own; any other server's is
the one that its exposition is in, and one without metrics only says that it is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kvquota_sidecar.clock import Clock
from kvquota_sidecar.engines import llamacpp, sglang
from kvquota_sidecar.engines.fetching import Fetched, fetch
from kvquota_sidecar.engines.lives import Lives
from kvquota_sidecar.engines.reading import Reading
from kvquota_sidecar.engines.vllm import read_vllm
from kvquota_sidecar.ledger.asking import EngineSample
from kvquota_sidecar.proxy.engine_side import EnginePool

MAX_METRICS_BYTES: Final = 8 * 1024 * 1024  # an exposition of vLLM has about 200 KiB for each of its ranks
SAMPLE_SECONDS: Final = 2.0  # for each question; a busy engine's own server is late by a step or two


class MetricsSampler:
    """An `EngineSampler`. `engine_type`: as the config in force says; `wall`: Unix seconds."""

    def __init__(
        self, pool: EnginePool, engine_type: Callable[[], str | None] = lambda: None, wall: Clock = time.time
    ) -> None:
        self._pool = pool
        self._engine_type = engine_type
        self._lives = Lives(wall)
        self._spoken = ""
        self._info: tuple[float | None, sglang.SglangInfo] | None = None

    @property
    def rest_seconds(self) -> float:
        return llamacpp.REST_SECONDS if self._spoken == "LlamaCpp" else 0.0

    async def sample(self) -> EngineSample | None:
        fetched = await self._get("/metrics")
        text = fetched.body.decode(errors="replace") if fetched.status == 200 else ""
        self._spoken = self._dialect(text)
        reading = await self._read(self._spoken, text, fetched)
        return None if reading is None else replace(reading.sample, started_at=self._lives.name(reading.marks))

    def _dialect(self, text: str) -> str:
        said = self._engine_type()
        if said in ("vLLM", "SGLang", "LlamaCpp"):
            return said
        if llamacpp.speaks_llamacpp(text):
            return "LlamaCpp"
        return "SGLang" if "sglang:" in text else "vLLM"

    async def _read(self, dialect: str, text: str, fetched: Fetched) -> Reading | None:
        if dialect == "LlamaCpp":
            slots = await self._get(llamacpp.SLOTS_PATH)
            told = llamacpp.read_slots(slots.body) if slots.status == 200 else ()
            return llamacpp.read_llamacpp(text, fetched.header(llamacpp.START_HEADER), told)
        if dialect == "SGLang":
            return await self._read_sglang(text)
        return read_vllm(text)

    async def _read_sglang(self, text: str) -> Reading | None:
        """Asks once in a life of the engine for what its metrics leave out."""
        reading = sglang.read_sglang(text, sglang.SglangInfo())
        if reading is None or reading.sample.blocks is not None:
            return reading
        life = self._lives.name(reading.marks)
        if self._info is None or self._info[0] != life:
            answer = await self._get(sglang.INFO_PATH)
            self._info = life, sglang.read_info(answer.body if answer.status == 200 else b"")
        return sglang.read_sglang(text, self._info[1])

    async def _get(self, path: str) -> Fetched:
        return await fetch(self._pool, path, max_bytes=MAX_METRICS_BYTES, seconds=SAMPLE_SECONDS)
