"""The samplers there are: of an engine with vLLM's metrics, or of any server."""

from __future__ import annotations

from typing import Final

from kvquota_sidecar.engines.fetching import fetch
from kvquota_sidecar.engines.vllm import read_sample
from kvquota_sidecar.ledger.asking import EngineSample
from kvquota_sidecar.proxy.engine_side import EnginePool

MAX_METRICS_BYTES: Final = 8 * 1024 * 1024  # an exposition of vLLM has about 200 KiB
SAMPLE_SECONDS: Final = 2.0


class MetricsSampler:
    """An `EngineSampler` for engines that answer GET /metrics as vLLM does; for others it says that they are there."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool

    async def sample(self) -> EngineSample | None:
        fetched = await fetch(self._pool, "/metrics", max_bytes=MAX_METRICS_BYTES, seconds=SAMPLE_SECONDS)
        return read_sample(fetched.body.decode(errors="replace")) if fetched.status == 200 else None
