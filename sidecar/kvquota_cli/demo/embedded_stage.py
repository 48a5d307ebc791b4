"""The demonstration without a cluster."""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self

from kvquota_api.pod_config import Enforcement
from kvquota_cli.demo.scenario import POOL, Scenario, Setting, as_yaml, manifests
from kvquota_cli.demo.stage import until
from kvquota_cli.embedded.identity import new_secret, new_uid
from kvquota_cli.embedded.objects import Objects
from kvquota_cli.embedded.session import Session
from kvquota_cli.manifests.documents import read_documents
from kvquota_cli.manifests.last_good import InForce
from kvquota_cli.tables.objects import quota_table
from kvquota_cli.tables.table import Table
from kvquota_operator.reconcile.basis import PlanOf
from kvquota_operator.reconcile.observed import Observed, PoolKey
from kvquota_operator.reconcile.plan import Plan
from kvquota_operator.reconcile.reconcile import reconcile
from kvquota_sidecar.proxy.engine_side import EngineAddress
from kvquota_sidecar.settings import Bind, Settings
from kvquota_sidecar.sidecar import Sidecar

ANY_PORT: Final = Bind("127.0.0.1", 0)
SAMPLE_SECONDS: Final = 0.2  # a look at the engine: so often, that what ended is seen before flood comes back for it

SYNC_SECONDS: Final = 0.5  # how old a table may be


def sidecar_settings(engine: EngineAddress) -> Settings:
    """On free ports of loopback; nobody waits for running requests at the end."""
    return Settings(
        listen=ANY_PORT,
        admin=ANY_PORT,
        engine=engine,
        lame_duck_seconds=0.0,
        drain_seconds=0.0,
        sample_seconds=SAMPLE_SECONDS,
    )


class EmbeddedStage:
    """A Stage: `kvquota serve` with manifests in memory."""

    def __init__(self, scenario: Scenario, setting: Setting, engine: EngineAddress) -> None:
        self._scenario = scenario
        self._setting = setting
        self._objects = Objects(setting.namespace, new_uid)
        self._session = Session(
            self._objects,
            PoolKey(setting.namespace, POOL),
            sidecar_settings(engine),
            new_secret(),
            tell=lambda _: None,
            log=Nowhere(),
            decide=self._decide,
            sync_seconds=SYNC_SECONDS,
        )
        self._statuses: Mapping[str, Mapping[str, Any]] = {}

    @property
    def sidecar(self) -> Sidecar:
        return self._session.sidecar

    async def __aenter__(self) -> Self:
        self._take("Shadow")
        await self._session.__aenter__()
        try:
            await until(self._session.configured.is_set, "the first config")
        except BaseException:
            await self._session.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.__aexit__(kind, error, trace)

    async def enforce(self, enforcement: Enforcement) -> None:
        """Edit the pool."""
        self._take(enforcement)
        self._session.touch()

    async def table(self) -> Table:
        """By the columns of the CRD, all rows of one moment: the latest statuses, however short ago."""
        quotas = [
            {**stored.body, "status": self._statuses.get(key.name, stored.status)}
            for key, stored in self._objects.all_of("TenantQuota")
        ]
        return quota_table(quotas, datetime.now(UTC))

    def _decide(self, observed: Observed, now: float, wall: datetime, plan_of: PlanOf) -> Plan:
        plan = reconcile(observed, now, wall, plan_of)
        self._statuses = plan.quota_statuses
        return plan

    def _take(self, enforcement: Enforcement) -> None:
        text = as_yaml(manifests(self._scenario, self._setting, enforcement))
        self._objects.take(InForce(read_documents(text, "demo.yaml")), datetime.now(UTC))


class Nowhere(io.StringIO):
    """A log that nobody reads."""

    def write(self, text: str, /) -> int:
        """Keep nothing."""
        return len(text)
