"""What the durable copies of one pool have in common, kept once.

Decides which parts of a config that was read are those of one that was read before: hundreds of pods have the same
tenants, plan and ladder, which is nearly all of a config. Pure. Invariants:

1. What comes out is equal to what went in.
2. However many configs there were, at most MAX_PARTS parts are remembered.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from kvquota_api.pod_config import PodConfig

MAX_PARTS: Final = 256  # one pool at rest has six; one that divides a limit over unequal pods has a few more

T = TypeVar("T")


class Sharing:
    """The parts of the configs that were read so far."""

    def __init__(self) -> None:
        self._parts: dict[Any, Any] = {}

    def shared(self, config: PodConfig) -> PodConfig:
        """The same config, of parts that others have too."""
        return msgspec.structs.replace(
            config,
            pool=self._once(config.pool),
            kv=self._once(config.kv),
            ladder=self._once(config.ladder),
            tenants=self._once(config.tenants),
            media=self._once(config.media),
            earlier=self._once(config.earlier),
        )

    def _once(self, part: T) -> T:
        if len(self._parts) >= MAX_PARTS:
            self._parts.clear()
        known: T = self._parts.setdefault(part, part)
        return known
