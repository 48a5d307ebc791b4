"""The demonstration through an API server: real objects, the real operator, and one pod whose sidecar is here.

Everything is in a namespace of its own. The pod is only an object: nothing schedules it, and its address is loopback,
where the sidecar of this process listens.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final, Self

from kvquota_api.crd import MODEL_POOLS, TENANT_QUOTAS
from kvquota_api.meta import TOKEN_KEY
from kvquota_api.pod_config import Enforcement
from kvquota_cli.demo.api_server import TABLE, ApiServer, connected, inside, ours
from kvquota_cli.demo.cluster_objects import create_all, create_pod, definitions, namespace
from kvquota_cli.demo.embedded_stage import Nowhere, sidecar_settings
from kvquota_cli.demo.scenario import POOL, Scenario, Setting, manifests
from kvquota_cli.demo.stage import report_of, until, until_found
from kvquota_cli.tables.table import Table, table_from_server
from kvquota_operator.__main__ import run as run_operator
from kvquota_operator.reconcile.manifests import pool_secret_name
from kvquota_operator.settings import OperatorSettings
from kvquota_sidecar.proxy.engine_side import EngineAddress
from kvquota_sidecar.sidecar import Sidecar

SYNC_SECONDS: Final = 1.0
FILES_SECONDS: Final = 0.2  # the sidecar waits for its token in a file, as in a pod


class ClusterStage:
    """A Stage; all that it makes is removed when its context is left."""

    def __init__(self, scenario: Scenario, setting: Setting, engine: EngineAddress, kubeconfig: Path) -> None:
        self._scenario = scenario
        self._setting = setting
        self._kubeconfig = kubeconfig
        self._engine = engine
        self._stack = AsyncExitStack()
        self._api: ApiServer
        self._sidecar: Sidecar

    @property
    def sidecar(self) -> Sidecar:
        return self._sidecar

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._api = await stack.enter_async_context(connected(self._kubeconfig))
            mounted = Path(stack.enter_context(TemporaryDirectory(prefix="kvquota-")))
            await stack.enter_async_context(definitions(self._api))
            await stack.enter_async_context(namespace(self._api, self._setting.namespace))
            settings = replace(sidecar_settings(self._engine), identity=mounted, files_seconds=FILES_SECONDS)
            self._sidecar = await stack.enter_async_context(Sidecar(settings, log=Nowhere()))
            await self._create()
            await self._operate(stack)
            await self._mount_token(mounted)
            await until(lambda: report_of(self).in_force.generation > 0, "the operator's first config")
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def enforce(self, enforcement: Enforcement) -> None:
        """Edit the pool, as `kubectl edit` does."""
        path = ours(self._setting.namespace, MODEL_POOLS, POOL)
        await self._api.merge(path, {"spec": {"enforcement": enforcement}})

    async def table(self) -> Table:
        """As the API server prints it."""
        return table_from_server(await self._api.get(ours(self._setting.namespace, TENANT_QUOTAS), TABLE))

    async def _create(self) -> None:
        where = self._setting.namespace
        setting = replace(self._setting, admin_port=self._sidecar.admin_address.port)
        await create_all(self._api, manifests(self._scenario, setting, "Shadow"))
        await create_pod(self._api, where)

    async def _operate(self, stack: AsyncExitStack) -> None:
        settings = OperatorSettings(
            namespaces=(self._setting.namespace,), kubeconfig=self._kubeconfig, sync_seconds=SYNC_SECONDS
        )
        stop, ready = asyncio.Event(), asyncio.Event()
        operating = asyncio.create_task(run_operator(settings, stop, ready), name="operator")
        stack.push_async_callback(_stopped, operating, stop)
        await until(lambda: ready.is_set() or operating.done(), "the operator to watch the API server")
        if operating.done():
            await operating

    async def _mount_token(self, folder: Path) -> None:
        """What the kubelet would do for a pod."""
        path = inside(self._setting.namespace, "secrets", pool_secret_name(POOL))
        secret = await until_found(lambda: self._api.find(path), "the pool's Secret")
        (folder / TOKEN_KEY).write_bytes(b64decode(secret["data"][TOKEN_KEY]))


async def _stopped(operating: asyncio.Task[None], stop: asyncio.Event) -> None:
    stop.set()
    await asyncio.wait({operating})
    if not operating.cancelled():
        operating.result()
