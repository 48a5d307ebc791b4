"""What is asked of an engine, whichever it is."""

from __future__ import annotations

from typing import Protocol

from kvquota_sidecar.ledger.asking import EngineSample


class EngineSampler(Protocol):
    """One kind of engine."""

    @property
    def rest_seconds(self) -> float:
        """How long the engine must not be asked again after a sample; 0 where it may be asked at any time."""

    async def sample(self) -> EngineSample | None:
        """What the engine says of its KV cache now; None where this engine does not say.

        Raises EngineUnavailableError where it does not answer at all.
        """
