"""Why a pool cannot be planned: one tree of errors.

Every error has a `reason` (one word, for a condition) and a text with the numbers and what to do. Pure.
"""

from __future__ import annotations

from typing import ClassVar


class PlanError(ValueError):
    """A pool that cannot be planned."""

    reason: ClassVar[str] = "PlanInvalid"


class UnknownArchitectureError(PlanError):
    """A model whose KV cache the planner does not know; the text names the field of its config that says so."""

    reason: ClassVar[str] = "UnknownArchitecture"


class ModelConfigError(PlanError):
    """A model config that is not there, or in which something is missing or contradicts itself."""

    reason: ClassVar[str] = "ModelConfigInvalid"


class EngineUnknownError(PlanError):
    """Something of the engine that the planner would have to guess; the text names the field to set."""

    reason: ClassVar[str] = "EngineUnknown"


class PartitionTooLargeError(PlanError):
    """The parts do not fit on the card."""

    reason: ClassVar[str] = "PartitionTooLarge"


class PoolTooSmallError(PlanError):
    """The KV pool does not hold one request of the longest length."""

    reason: ClassVar[str] = "PoolTooSmall"
