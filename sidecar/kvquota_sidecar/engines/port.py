"""What is asked of an engine, whichever it is."""

from __future__ import annotations

from typing import Protocol

from kvquota_sidecar.ledger.asking import EngineSample


class EngineSampler(Protocol):
    """One kind of engine."""

    async def sample(self) -> EngineSample | None:
        """What the engine says of its KV cache now; None where this engine does not say.

        Raises EngineUnavailableError where it does not answer at all.
        """
