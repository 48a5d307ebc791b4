"""Our two kinds as tables, by the columns that their CRDs declare. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from kvquota_api.crd import MODEL_POOLS, TENANT_QUOTAS, Resource, custom_resource_definition
from kvquota_cli.tables.table import Column, Table, columns_of, table_of

Objects = Sequence[Mapping[str, Any]]


def quota_table(quotas: Objects, now: datetime) -> Table:
    """What `kubectl get tq` prints for these TenantQuotas at `now` (aware)."""
    return table_of(_columns(TENANT_QUOTAS), quotas, now)


def pool_table(pools: Objects, now: datetime) -> Table:
    """What `kubectl get kvmp` prints for these ModelPools at `now` (aware)."""
    return table_of(_columns(MODEL_POOLS), pools, now)


def _columns(resource: Resource) -> tuple[Column, ...]:
    (version,) = custom_resource_definition(resource)["spec"]["versions"]
    return columns_of(version["additionalPrinterColumns"])
