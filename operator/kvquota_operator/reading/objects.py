"""ModelPools and TenantQuotas, as they are stored, to what a reconcile observes.

Decides what becomes of an object that does not parse: it stays, as an InvalidSeen, and its status says what is wrong.
Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvquota_api.model_pool import ModelPool
from kvquota_api.validation import InvalidObjectError, parse_model_pool, parse_tenant_quota
from kvquota_operator.reconcile.observed import InvalidSeen, Kind, PoolKey, QuotaSeen

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StoredPool:
    """`version` is its resourceVersion, which alone makes no difference. `labels`: what its selector asks of pods."""

    key: PoolKey
    uid: str
    pool: ModelPool | InvalidSeen
    status: Mapping[str, Any]
    labels: Mapping[str, str]
    version: str = field(compare=False, default="")

    @property
    def generation(self) -> int:
        return self.pool.generation if isinstance(self.pool, InvalidSeen) else self.pool.metadata.generation


@dataclass(frozen=True, slots=True)
class StoredQuota:
    """`pool`: the pool that it names, None where that cannot be read. `version` as in StoredPool."""

    namespace: str
    name: str
    uid: str
    pool: PoolKey | None
    quota: QuotaSeen | InvalidSeen
    version: str = field(compare=False, default="")

    @property
    def status(self) -> Mapping[str, Any]:
        return self.quota.status

    @property
    def generation(self) -> int:
        seen = self.quota
        return seen.generation if isinstance(seen, InvalidSeen) else seen.quota.metadata.generation


def read_pool(body: Body) -> StoredPool:
    """A ModelPool as stored."""
    meta = body["metadata"]
    return StoredPool(
        key=PoolKey(meta.get("namespace", "default"), meta["name"]),
        uid=meta.get("uid", ""),
        pool=_parsed_pool(body),
        status=_mapping(body.get("status")),
        labels=_match_labels(body),
        version=meta.get("resourceVersion", ""),
    )


def read_quota(body: Body) -> StoredQuota:
    """A TenantQuota as stored."""
    meta = body["metadata"]
    namespace = meta.get("namespace", "default")
    pool = _mapping(_mapping(body.get("spec")).get("modelPoolRef")).get("name")
    return StoredQuota(
        namespace=namespace,
        name=meta["name"],
        uid=meta.get("uid", ""),
        pool=PoolKey(namespace, pool) if isinstance(pool, str) else None,
        quota=_parsed_quota(body),
        version=meta.get("resourceVersion", ""),
    )


def read_model_config(config_map: Body | None, key: str) -> Mapping[str, Any] | None:
    """The config.json in one entry of a ConfigMap; None where it is not there or no JSON object."""
    text = _mapping(_mapping(config_map).get("data")).get(key)
    try:
        content = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):  # a number of thousands of digits, thousands of levels
        return None
    return content if isinstance(content, dict) else None


def _parsed_pool(body: Body) -> ModelPool | InvalidSeen:
    try:
        return parse_model_pool(_without_status(body))
    except InvalidObjectError as error:
        return _invalid("ModelPool", body, error)


def _parsed_quota(body: Body) -> QuotaSeen | InvalidSeen:
    try:
        return QuotaSeen(parse_tenant_quota(_without_status(body)), _mapping(body.get("status")))
    except InvalidObjectError as error:
        return _invalid("TenantQuota", body, error)


def _without_status(body: Body) -> Body:
    """A status is kept as it is stored, and to parse it would take more than half of the time."""
    return {key: value for key, value in body.items() if key != "status"}


def _invalid(kind: Kind, body: Body, error: InvalidObjectError) -> InvalidSeen:
    meta = body["metadata"]
    return InvalidSeen(
        kind=kind,
        name=meta["name"],
        uid=meta.get("uid", ""),
        generation=meta.get("generation", 0),
        message=str(error),
        status=_mapping(body.get("status")),
    )


def _match_labels(body: Body) -> dict[str, str]:
    """What even a pool that does not parse may say of its pods."""
    selector = _mapping(_mapping(body.get("spec")).get("selector"))
    found = _mapping(selector.get("matchLabels"))
    return {key: value for key, value in found.items() if isinstance(value, str)}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
