"""What the engine does not say, by the names of the report's fields. Pure."""

from __future__ import annotations

from typing import Final

from kvquota_sidecar.ledger.asking import EngineSample

SAYABLE: Final = ("blocks", "block_tokens", "used_blocks", "running", "waiting", "started_at")


def unsaid(sample: EngineSample | None) -> tuple[str, ...]:
    """Those of SAYABLE that are missing; all of them where there is no sample."""
    return tuple(name for name in SAYABLE if sample is None or getattr(sample, name) is None)
