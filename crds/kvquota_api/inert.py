"""Fields that are accepted and that nothing acts upon yet.

Decides which they are and what is said of them: in the schema, the reference and `kubectl explain`, in a condition of
who asks for one, and in the chart's warning when it is applied. Pure. A field that gets built is taken out here and in
the chart's template; README.md and the examples name it too.

Invariants:

1. A field is named only where it asks for something: its default, or its absence, does not.
2. `asks` in CEL and `is_asked` in Python judge alike; both are run on one table of objects, the CEL by a real API
   server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvquota_api.model_pool import ModelPoolSpec
from kvquota_api.tenant_quota import TenantQuotaSpec

NOT_YET: Final = "Accepted, and not acted upon yet."  # behind what the field will mean


@dataclass(frozen=True, slots=True)
class InertField:
    """`path`: as users write it. `meanwhile`: what happens in its stead, without a full stop. `asks`: CEL."""

    path: str
    meanwhile: str
    asks: str
    is_asked: Callable[[Any], bool]

    @property
    def sentence(self) -> str:
        """What is said to who asks for it."""
        return f"{self.path}: {self.meanwhile}"


_POOL: Final = (
    InertField(
        path="spec.engine.plugin",
        meanwhile="nothing runs inside the engine yet, quotas hold in the sidecar, by its own count",
        asks="has(object.spec.engine.plugin) && object.spec.engine.plugin != 'Off'",
        is_asked=lambda spec: spec.engine.plugin != "Off",
    ),
    InertField(
        path="spec.degradation.truncate",
        meanwhile="no request is shortened yet, work beyond soft is refused and ended as shed and evict say",
        asks="has(object.spec.degradation) && has(object.spec.degradation.truncate)",
        is_asked=lambda spec: spec.degradation.truncate is not None,
    ),
    InertField(
        path="spec.degradation.fallback",
        meanwhile="no request is answered by less yet, work beyond soft is refused and ended as shed and evict say",
        asks="has(object.spec.degradation) && has(object.spec.degradation.fallback)",
        is_asked=lambda spec: spec.degradation.fallback is not None,
    ),
)


def _degradation(field: str, meanwhile: str, attribute: str) -> InertField:
    place = f"object.spec.degradation.{field}"
    return InertField(
        path=f"spec.degradation.{field}",
        meanwhile=meanwhile,
        asks=f"has(object.spec.degradation) && has({place}) && {place}",
        is_asked=lambda spec: bool(getattr(spec.degradation, attribute)),
    )


_QUOTA: Final = (
    _degradation("allowTruncation", "no request is shortened yet", "allow_truncation"),
    _degradation("allowSmallerModel", "no request is answered by less yet", "allow_smaller_model"),
    _degradation("insteadOfRefusal", "what would be refused is refused", "instead_of_refusal"),
)
INERT: Final[Mapping[str, tuple[InertField, ...]]] = {"ModelPool": _POOL, "TenantQuota": _QUOTA}


def not_enforced(spec: ModelPoolSpec | TenantQuotaSpec) -> str | None:
    """A sentence of all that this spec asks for and does not get, without a full stop; None where that is nothing."""
    asked = [field.sentence for field in asked_of(spec)]
    return f"accepted and not enforced yet: {'; '.join(asked)}" if asked else None


def asked_of(spec: ModelPoolSpec | TenantQuotaSpec) -> list[InertField]:
    """The fields that this spec asks for and does not get."""
    fields = _POOL if isinstance(spec, ModelPoolSpec) else _QUOTA
    return [field for field in fields if field.is_asked(spec)]
