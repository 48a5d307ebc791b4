"""What the operator's own Python takes for one pool: `python tests/bench/operatorbench/pass_speed.py [PODS] [QUOTAS]`.

With `--scope Pool` the quotas hold over all its pods. Prints milliseconds of processor time, the best of several runs:
to read the reports of all pods, and to decide, with numbers that change from run to run. Besides them a pass costs one
sync per pod. And it prints how much memory the reports and the durable copies of all pods take.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, TypeVar

import site_objects
from arguments import at_least
from workload import Fleet, address, pod_name, tenant_name, usage_of

from kvquota_api import usage
from kvquota_api.pod_config import PodConfig, decode_config, encode
from kvquota_api.usage import EngineUsage, InForce, PoolUsage, UsageReport
from kvquota_api.validation import parse_model_pool, parse_tenant_quota
from kvquota_operator.planner import Planner
from kvquota_operator.reading.reports import read_report
from kvquota_operator.reading.sharing import Sharing
from kvquota_operator.reconcile.observed import (
    KeyFound,
    Observed,
    PodSeen,
    PoolKey,
    QuotaSeen,
    ReportSeen,
    SecretSeen,
)
from kvquota_operator.reconcile.reconcile import reconcile

RUNS: Final = 7
NOW: Final = 1000.0
WALL: Final = datetime(2026, 11, 1, tzinfo=UTC)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool of a fleet that has no other, decided on once: its pods have their configs."""

    fleet: Fleet
    observed: Observed
    identity: str

    def reports(self, second: int) -> dict[str, bytes]:
        """What every pod says at a moment, by uid."""
        tenants = tuple(
            usage_of(f"{site_objects.NAMESPACE}/{tenant_name(each)}", each / self.fleet.quotas, second, 1.7e9)
            for each in self.fleet.quotas_of(0)
        )
        configs = self.observed.configs
        return {uid: usage.encode(self._report(each, second, tenants)) for uid, each in configs.items()}

    def _report(self, config: PodConfig, second: int, tenants: tuple[usage.TenantUsage, ...]) -> UsageReport:
        blocks = config.kv.cap_blocks
        return UsageReport(
            epoch="benchmark",
            sequence=second,
            started_at=1.0,
            in_force=InForce(
                generation=config.generation,
                config_digest=config.digest,
                identity_digest=self.identity,
                source="Channel",
            ),
            engine=EngineUsage(state="Ready", blocks=blocks, block_tokens=config.kv.block_tokens, age_seconds=0.5),
            pool=PoolUsage(usable=blocks - 1, free=100, reserved=100, used=50, unattributed=0, pressure_percent=30.0),
            tenants=tenants,
        )


def stored(body: site_objects.Object, uid: str) -> site_objects.Object:
    metadata = {**body["metadata"], "uid": uid, "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {**body, "metadata": metadata}


def pod(number: int) -> PodSeen:
    return PodSeen(
        namespace=site_objects.NAMESPACE,
        name=pod_name(number),
        uid=f"uid-{number}",
        ip=address(number),
        ready=True,
        deleting=False,
        governed=True,
    )


def made(fleet: Fleet) -> Pool:
    names = [tenant_name(each) for each in fleet.quotas_of(0)]
    pods = [pod(each) for each in fleet.pods_of(0)]
    quotas = [parse_tenant_quota(stored(body, body["metadata"]["name"])) for body in site_objects.quotas(fleet)]
    keys = [site_objects.api_key(each)["stringData"]["key"] for each in fleet.quotas_of(0)]
    first = Observed(
        key=PoolKey(site_objects.NAMESPACE, "pool-00"),
        pool=parse_model_pool(stored(site_objects.model_pool(0, 9600), "uid-pool")),
        pool_status={},
        quotas=tuple(QuotaSeen(each, {}) for each in quotas),
        keys={(name, "key"): KeyFound(key) for name, key in zip(names, keys, strict=True)},
        pods=tuple(pods),
        secret=SecretSeen("t" * 64, "p" * 64),
    )
    plan = reconcile(first, NOW, WALL)
    assert plan.secret is not None
    secret = SecretSeen(plan.secret.token, plan.secret.pepper, plan.secret.identity)
    configs = copies(plan.configs)
    return Pool(fleet, replace(first, secret=secret, configs=configs), plan.secret.identity.digest)


def copies(configs: Iterable[PodConfig]) -> dict[str, PodConfig]:
    """The durable copies, as they are read."""
    sharing = Sharing()
    return {config.pod.uid: sharing.shared(decode_config(encode(config))) for config in configs}


def kept_kib(work: Callable[[T], object], given: T) -> float:
    """How much memory the result takes."""
    tracemalloc.start()
    result = work(given)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del result
    return size / 1024


def best(work: Callable[[T], object], given: Iterable[T]) -> float:
    """Milliseconds of processor time, of the fastest."""
    taken = []
    for each in given:
        start = time.process_time()
        work(each)
        taken.append(time.process_time() - start)
    return min(taken) * 1000


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    cli = argparse.ArgumentParser(prog="pass_speed.py", description="Measure the operator's own Python for one pool.")
    cli.add_argument("pods", type=at_least(1), nargs="?", default=250, help="of the pool (%(default)s)")
    cli.add_argument("quotas", type=at_least(1), nargs="?", default=10, help="of the pool (%(default)s)")
    cli.add_argument(
        "--scope", choices=("PerReplica", "Pool"), default="PerReplica", help="of all quotas (%(default)s)"
    )
    return cli.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    pods, quotas = options.pods, options.quotas
    pool = made(Fleet(pods, quotas, 1, 100 if options.scope == "Pool" else 0))
    said = [pool.reports(second) for second in range(RUNS)]

    def seen(data: dict[str, bytes]) -> Observed:
        read = {uid: ReportSeen(read_report(each), NOW) for uid, each in data.items()}
        return replace(pool.observed, reports=read)

    looks, planner = [seen(data) for data in said], Planner()
    size = len(next(iter(said[0].values())))
    print(f"{pods} pods, {quotas} quotas of scope {options.scope}, reports of {size} bytes; milliseconds:")
    print(f"reading the reports {best(seen, said):8.2f}")
    print(f"deciding            {best(lambda look: reconcile(look, NOW, WALL, planner), looks):8.2f}")
    print("KiB per pod:")
    print(f"reports             {kept_kib(seen, said[0]) / pods:8.2f}")
    print(f"durable copies      {kept_kib(copies, pool.observed.configs.values()) / pods:8.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
