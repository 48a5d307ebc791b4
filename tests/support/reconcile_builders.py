"""Builders for tests of the operator's decisions: the pool of examples/ with its two tenants, as it may be observed."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml

from contract_objects import changed
from kvquota_api.memory.plan import plan_pool
from kvquota_api.model_pool import ModelPool
from kvquota_api.pod_config import PodConfig
from kvquota_api.tenant_quota import TenantQuota
from kvquota_api.usage import Counts, EngineUsage, InForce, PoolUsage, Refusal, Rejected, TenantUsage, UsageReport
from kvquota_api.validation import parse_model_pool, parse_tenant_quota
from kvquota_operator.reconcile.observed import (
    InvalidSeen,
    KeyFound,
    KeyProblem,
    Observed,
    PodSeen,
    PoolClaim,
    PoolKey,
    QuotaSeen,
    ReportSeen,
    SecretSeen,
)
from kvquota_operator.reconcile.plan import Plan
from kvquota_operator.reconcile.reconcile import reconcile

EXAMPLES = Path(__file__).parents[2] / "examples"
KEY = PoolKey("inference", "llama-8b")
NOW = 1000.0
WALL = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
LATER = datetime(2026, 11, 1, 13, 0, tzinfo=UTC)
TOKEN = "7" * 64
PEPPER = "5" * 64
CAP = 18_432  # blocks of the example pool
POOL_CREATED = "2026-10-01T00:00:00Z"


def _documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text(encoding="utf-8")))


def pool(**changes: Any) -> ModelPool:
    """The pool llama-8b of the examples with fields of its spec changed: `__` stands for a dot."""
    raw = changed(
        _documents("modelpool.yaml")[0], {f"spec.{path.replace('__', '.')}": changes[path] for path in changes}
    )
    raw["metadata"] |= {"uid": "uid-pool", "generation": 3, "creationTimestamp": POOL_CREATED}
    return parse_model_pool(raw)


def plan_hash(of: ModelPool) -> str:
    """Names the plan of a pool."""
    return plan_pool(of, None).plan_hash


def example_quotas() -> tuple[QuotaSeen, ...]:
    """The quotas of search and batch, search the older one."""
    found = []
    for age, raw in enumerate(_documents("tenantquotas.yaml")):
        raw["metadata"] |= {"uid": f"uid-{raw['metadata']['name']}", "generation": 1, "creationTimestamp": created(age)}
        found.append(QuotaSeen(parse_tenant_quota(raw), {}))
    return tuple(found)


def example_keys() -> dict[tuple[str, str], KeyFound | KeyProblem]:
    secrets = {raw["metadata"]["name"]: raw for raw in _documents("secrets.yaml") if raw["kind"] == "Secret"}
    names = (("search-api-key", "key"), ("batch-api-key", "key"), ("gateway-secret", "token"))
    return {(name, key): KeyFound(secrets[name]["stringData"][key]) for name, key in names}


def example_jwks() -> KeyFound:
    """The set of keys of the example pool's issuer."""
    return KeyFound(next(raw["data"]["jwks.json"] for raw in _documents("secrets.yaml") if raw["kind"] == "ConfigMap"))


def created(age: int) -> str:
    """The creation time of the object that came `age` minutes after the first."""
    return f"2026-10-02T{age // 60:02d}:{age % 60:02d}:00Z"


def quota(name: str, *, age: int = 10, tenant: str | None = None, generation: int = 1, **spec: Any) -> TenantQuota:
    """A quota of the example pool; `spec` as users write it."""
    return parse_tenant_quota(
        {
            "apiVersion": "kvquota.dev/v1alpha1",
            "kind": "TenantQuota",
            "metadata": {
                "name": name,
                "namespace": KEY.namespace,
                "uid": f"uid-{name}",
                "generation": generation,
                "creationTimestamp": created(age),
            },
            "spec": {"tenant": tenant or name, "modelPoolRef": {"name": KEY.name}, **spec},
        }
    )


def seen(*quotas: TenantQuota) -> tuple[QuotaSeen, ...]:
    return tuple(QuotaSeen(each, {}) for each in quotas)


def unread(name: str, message: str = "spec.priority: 2000 must be at most 1000", status: Any = None) -> InvalidSeen:
    return InvalidSeen("TenantQuota", name, f"uid-{name}", 2, message, status or {})


def unread_pool(message: str = "spec.gpu.memory: is required: add it") -> InvalidSeen:
    return InvalidSeen("ModelPool", KEY.name, "uid-pool", 4, message, {})


def key_of(name: str) -> dict[str, Any]:
    """The identity of a quota whose one key is in the Secret `name`."""
    return {"apiKeys": [{"secretRef": {"name": name, "key": "key"}}]}


def pod(
    name: str = "llama-8b-0",
    *,
    ip: str | None = "10.0.0.1",
    ready: bool = True,
    deleting: bool = False,
    governed: bool = True,
    others: tuple[PoolClaim, ...] = (),
    asks: bool = False,
    plan: str | None = None,
) -> PodSeen:
    return PodSeen(
        KEY.namespace,
        name,
        f"uid-{name}",
        ip,
        ready=ready,
        deleting=deleting,
        governed=governed,
        other_pools=others,
        asks=asks,
        plan=plan,
    )


def tenant_usage(
    tenant: str,
    *,
    reserved: int = 0,
    used: int = 0,
    over_soft: int = 0,
    in_flight: int = 0,
    recent: Counts | None = None,
    refusal: Refusal | None = None,
) -> TenantUsage:
    return TenantUsage(
        id=f"{KEY.namespace}/{tenant}",
        reserved=reserved,
        used=used,
        over_soft=over_soft,
        in_flight=in_flight,
        total=Counts(),
        recent=recent or Counts(),
        last_refusal=refusal,
    )


def pool_usage(**fields: Any) -> PoolUsage:
    """An idle pool with some fields changed."""
    idle = PoolUsage(usable=CAP - 1, free=CAP - 1, reserved=0, used=0, unattributed=0, pressure_percent=0.0)
    return msgspec.structs.replace(idle, **fields)


def report(
    *tenants: TenantUsage,
    blocks: int | None = CAP,
    block_tokens: int | None = 16,
    pool: PoolUsage | None = None,
    in_force: InForce | None = None,
    rejected: Rejected | None = None,
    **engine: Any,
) -> UsageReport:
    """`engine`: further fields of what is said of the engine."""
    return UsageReport(
        epoch="epoch",
        sequence=1,
        started_at=1.0,
        in_force=in_force or InForce(),
        rejected=rejected,
        engine=EngineUsage(**{"state": "Ready", "blocks": blocks, "block_tokens": block_tokens, **engine}),
        pool=pool if pool is not None else pool_usage(),
        tenants=tenants,
    )


def reported(
    given: UsageReport | None = None, *, age: float = 0.0, error: str | None = None, name: str = "llama-8b-0"
) -> dict[str, ReportSeen]:
    """What the channel knows of one pod whose last report is `age` seconds old."""
    return {f"uid-{name}": ReportSeen(given, None if given is None else NOW - age, error)}


def observed(**fields: Any) -> Observed:
    """The example pool with one pod that reports an idle engine of the planned size; any field may be another."""
    default = Observed(
        key=KEY,
        pool=pool(),
        pool_status={},
        quotas=example_quotas(),
        keys=example_keys(),
        pods=(pod(),),
        reports=reported(report()),
        secret=SecretSeen(TOKEN, PEPPER),
        jwks=example_jwks(),
    )
    return replace(default, **fields)


def decided(**fields: Any) -> Plan:
    """The plan for `observed(**fields)`."""
    return reconcile(observed(**fields), NOW, WALL)


def carried_out(before: Observed, plan: Plan) -> Observed:
    """`before` once all of `plan` is stored and nothing else has happened."""
    configs = {config.pod.uid: config for config in plan.configs}
    statuses = plan.quota_statuses
    return replace(
        before,
        pool_status=plan.pool_status,
        quotas=tuple(QuotaSeen(each.quota, statuses[each.quota.metadata.name]) for each in before.quotas),
        invalid=tuple(replace(each, status=statuses[each.name]) for each in before.invalid),
        configs={**before.configs, **configs},
        secret=None if plan.secret is None else SecretSeen(plan.secret.token, plan.secret.pepper, plan.secret.identity),
    )


def in_force(config: PodConfig) -> InForce:
    """What a pod reports that has taken `config`."""
    return InForce(generation=config.generation, config_digest=config.digest, source="Channel")


def condition(status: Mapping[str, Any], kind: str) -> tuple[str, str, str]:
    """Status, reason and message of one condition."""
    found = next(each for each in status["conditions"] if each["type"] == kind)
    return found["status"], found["reason"], found["message"]


def softs(config: PodConfig) -> dict[str, int]:
    """By quota, the soft in a config."""
    return {share.quota: share.soft_blocks for share in config.tenants}


def hards(config: PodConfig) -> dict[str, int]:
    """By quota, the hard in a config."""
    return {share.quota: share.hard_blocks for share in config.tenants}
