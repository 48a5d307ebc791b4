"""The CustomResourceDefinitions of both resources.

Decides their names, their subresources and the columns of `kubectl get`; the schema comes from the models. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from kvquota_api.inert import INERT, NOT_YET, InertField
from kvquota_api.meta import CATEGORY, GROUP, VERSION
from kvquota_api.model_pool import ModelPool
from kvquota_api.resource import Model
from kvquota_api.schema import structural_schema
from kvquota_api.tenant_quota import TenantQuota

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; `wide`: only with -o wide."""

    name: str
    path: str
    type: Literal["string", "integer", "date"] = "string"
    wide: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True)
class Resource:
    """How a kind is called and shown."""

    model: type[Model]
    kind: str
    plural: str
    short: str
    columns: tuple[Column, ...]

    @property
    def name(self) -> str:
        """Name of the CustomResourceDefinition."""
        return f"{self.plural}.{GROUP}"


_AGE: Final = Column("Age", ".metadata.creationTimestamp", "date")
_REJECTED: Final = (".status.recent.rejectedTotal", "Requests refused in the last ten minutes.")
_EVICTED: Final = (".status.recent.evicted", "Running requests ended for others in the last ten minutes.")

TENANT_QUOTAS: Final = Resource(
    model=TenantQuota,
    kind="TenantQuota",
    plural="tenantquotas",
    short="tq",
    columns=(
        Column("Tenant", ".spec.tenant"),
        Column("Pool", ".spec.modelPoolRef.name"),
        Column("Soft", ".status.soft.tokens", "integer", description="Guaranteed tokens."),
        Column("Hard", ".status.hard.tokens", "integer", description="Most tokens."),
        Column("Used", ".status.used.tokens", "integer", description="Tokens filled now."),
        Column("InFlight", ".status.inFlight", "integer", description="Sequences that run now."),
        Column("Rejected-10m", _REJECTED[0], "integer", description=_REJECTED[1]),
        Column("Evicted-10m", _EVICTED[0], "integer", description=_EVICTED[1]),
        Column("State", ".status.state"),
        _AGE,
        Column("Soft-Blocks", ".status.soft.blocks", "integer", wide=True),
        Column("Hard-Blocks", ".status.hard.blocks", "integer", wide=True),
        Column("Used-Blocks", ".status.used.blocks", "integer", wide=True),
        Column("Priority", ".status.priority", "integer", wide=True),
        Column("Tier", ".spec.tier", wide=True),
        Column("Last-Refusal", ".status.lastRefusal.code", wide=True),
    ),
)
MODEL_POOLS: Final = Resource(
    model=ModelPool,
    kind="ModelPool",
    plural="modelpools",
    short="kvmp",
    columns=(
        Column("Model", ".spec.model.name"),
        Column("Cap-Tokens", ".status.kv.cap.tokens", "integer", description="Hard cap of one engine."),
        Column("Used", ".status.kv.used.tokens", "integer", description="Tokens filled now, over all pods."),
        Column("Pressure", ".status.pressurePercent", "integer", description="Percent, highest of all pods."),
        Column("Rung", ".status.rung"),
        Column("Pods", ".status.pods.summary", description="Reporting of expected."),
        Column("State", ".status.state"),
        _AGE,
        Column("Engine", ".spec.engine.type", wide=True),
        Column("GPU", ".spec.gpu.memory", wide=True),
        Column("KV", ".status.memory.planned.kvPool", wide=True),
        Column("Weights", ".status.memory.planned.weights", wide=True),
        Column("Hit-Percent", ".status.prefixHitRatePercent", "integer", wide=True),
        Column("Rejected-10m", _REJECTED[0], "integer", wide=True, description=_REJECTED[1]),
        Column("Evicted-10m", _EVICTED[0], "integer", wide=True, description=_EVICTED[1]),
    ),
)
RESOURCES: Final = (MODEL_POOLS, TENANT_QUOTAS)

# The API server checks both itself.
_OWN_FIELDS: Final[Json] = {
    "apiVersion": {"description": "Version of the resource: kvquota.dev/v1alpha1.", "type": "string"},
    "kind": {"description": "Kind of the resource.", "type": "string"},
}


def custom_resource_definition(resource: Resource) -> Json:
    """The manifest. Raises SchemaError where a model has no structural schema."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": resource.name},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "shortNames": [resource.short],
                "categories": [CATEGORY],
            },
            "versions": [_version(resource)],
        },
    }


def _version(resource: Resource) -> Json:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": object_schema(resource.model)},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_printed(column) for column in resource.columns],
    }


def object_schema(model: type[Model]) -> Json:
    """The structural schema of a whole object, with what the API server owns left to it."""
    schema = structural_schema(model)
    for field in INERT[model.__name__]:
        _mark(schema, field)
    return {**schema, "properties": {**schema["properties"], **_OWN_FIELDS}, "required": ["spec"]}


def _mark(schema: Json, field: InertField) -> None:
    for name in field.path.split("."):
        schema = schema["properties"][name]
    schema["description"] = f"{schema['description']} {NOT_YET}"


def _printed(column: Column) -> Json:
    printed: Json = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return {
        **printed,
        **({"description": column.description} if column.description else {}),
        **({"priority": 1} if column.wide else {}),
    }
