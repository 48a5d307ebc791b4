"""One sidecar: everything put together, started and stopped in order.

    async with Sidecar(settings, log=outlet) as sidecar:
        sidecar.traffic_address, sidecar.admin_address   # what was bound
        sidecar.sync(request)                            # what the operator's POST /v1/sync does

The order of leaving: readiness off, lame duck, refuse new requests, let running ones end, end the rest with a final
event, release every reservation, check the books, say the last report, close.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Coroutine
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from kvquota_api.meta import IDENTITY_KEY, TOKEN_KEY
from kvquota_api.pod_config import PodConfig
from kvquota_api.usage import SyncRequest, UsageReport
from kvquota_sidecar import descriptors
from kvquota_sidecar.channel.access import Token, is_near
from kvquota_sidecar.channel.admin import Admin, AdminContext
from kvquota_sidecar.channel.files import FileWatch, WatchedFile
from kvquota_sidecar.channel.neighbours import gateways
from kvquota_sidecar.channel.reporting import Reporter
from kvquota_sidecar.channel.standing import Standing
from kvquota_sidecar.clock import Clock
from kvquota_sidecar.engines.aborts import Load
from kvquota_sidecar.engines.sampling import MetricsSampler
from kvquota_sidecar.engines.watching import EngineWatch
from kvquota_sidecar.estimate.ratio import Ratios
from kvquota_sidecar.inheritance import Heart, Inheritance, Keepsake
from kvquota_sidecar.ledger.asking import EngineSample
from kvquota_sidecar.ledger.books import Books
from kvquota_sidecar.listening import Listeners, address, written
from kvquota_sidecar.ports import Ports
from kvquota_sidecar.proxy.counting import Tokenizer
from kvquota_sidecar.proxy.desk import Desk
from kvquota_sidecar.proxy.draining import Drain
from kvquota_sidecar.proxy.engine_side import EnginePool
from kvquota_sidecar.proxy.hub import Hub, Patience
from kvquota_sidecar.proxy.request_ids import numbered
from kvquota_sidecar.proxy.traffic import Admittance, Traffic
from kvquota_sidecar.refusals import Code, refuse
from kvquota_sidecar.settings import Bind, Settings
from kvquota_sidecar.telemetry.journal import Journal, Sink
from kvquota_sidecar.telemetry.metrics import Exposition, Vitals
from kvquota_sidecar.telemetry.tally import Outcome, Tally
from kvquota_sidecar.tls import Certificate, CertificateError

TICK_SECONDS: Final = 0.05  # how late a deadline or the end of a drain may be noticed
# A sync carries config and identity of up to 10,000 tenants (about 5 MiB); the operator is one client per pod.
_ADMIN_PATIENCE: Final = Patience(max_body_bytes=16 * 1024 * 1024)


class Sidecar:
    """See the module. `clock` is monotonic seconds, `wall` Unix seconds; log lines go to `log`.

    `inherited`: what a supervisor left; None where this is part of another program, and binds its own sockets.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        log: Sink,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
        inherited: Inheritance | None = None,
    ) -> None:
        """Raises CertificateError."""
        self.settings = settings
        self._inherited = inherited
        self._heart = None if inherited is None else Heart(inherited.beat, clock)
        self._keepsake = Keepsake(None if inherited is None else inherited.kept)
        self._listeners: Listeners
        self._certificate = None if settings.tls is None else Certificate(settings.tls)
        self._clock = clock
        self._wall = wall
        self._started_at = clock()
        self._places = descriptors.places(descriptors.limit(), settings.patience.max_connections)
        self._heard_at: float | None = None  # of the operator
        self._root: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup
        self._started = asyncio.Event()
        self._stopping = asyncio.Event()
        self._drained = asyncio.Event()
        self.journal = Journal(log, wall)
        self.tally = Tally()
        self.books = Books(random.random, settings.sample_seconds)
        self._token = Token(settings.token.encode())
        self._assemble()

    # What others ask of it.

    @property
    def traffic_address(self) -> Bind:
        """Where the traffic port is bound."""
        return address(self._listeners.traffic)

    @property
    def admin_address(self) -> Bind:
        """Where the admin port is bound."""
        return address(self._listeners.admin)

    def sync(self, request: SyncRequest) -> UsageReport:
        """Take what a sync brings, and answer with the usage: the same as POST /v1/sync."""
        self._heard_at = self._clock()
        self._standing.offer(request)
        return self._reporter.report()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen. Raises OSError where a port cannot be bound."""
        self._keepsake.offer(self._standing.offer_identity, self._standing.offer_config)
        self._files.look()
        await self._bind()
        self._root = asyncio.create_task(self._run())
        started = asyncio.create_task(self._started.wait())
        await asyncio.wait((self._root, started), return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if self._root.done():
            await self._root

    async def until(self, leaving: asyncio.Event) -> None:
        """Wait for `leaving`; raises what the sidecar itself died of."""
        waiting = asyncio.create_task(leaving.wait())
        tasks = {waiting} if self._root is None else {waiting, self._root}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._root is not None and self._root.done():
            await self._root

    def hurry(self) -> None:
        """Do not wait for running requests any longer."""
        self._standing.drain.limit_seconds = 0.0

    async def stop(self) -> None:
        """Leave in order; at most `drain_seconds` and a moment."""
        if self._root is None:
            return
        self._stopping.set()
        await self._root
        self._root = None

    # The life of it: one task that owns all others.

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as self._tasks:
            await self._ports.start()
            keepers = [self._tasks.create_task(each) for each in (self._tick(), self._engine.run(), self._files.run())]
            self._started.set()
            await self._stopping.wait()
            await self._leave()
            for keeper in keepers:
                keeper.cancel()
            await self._ports.close()
            self._pool.close()

    async def _bind(self) -> None:
        inherited = self._inherited
        self._listeners = Listeners.bound(self.settings) if inherited is None else inherited.listeners
        try:
            await self._ports.listen(self._listeners)
        except OSError:
            self._listeners.close()
            raise
        self._beat()
        self._say_where()

    def _say_where(self) -> None:
        self.journal.write(
            "serving",
            traffic=written(self.traffic_address),
            admin=written(self.admin_address),
            engine=self._pool.address.authority.decode(),
            failurePolicy=self.settings.failure_policy,
            generation=self._standing.documents.in_force().generation,
            tls=None if self.settings.tls is None else str(self.settings.tls.certificate),
            config=None if self.settings.config is None else str(self.settings.config),
            identity=None if self.settings.identity is None else str(self.settings.identity),
        )
        self._standing.say_what_is_missing(self.settings.config, self.settings.identity)
        wanted = self.settings.patience.max_connections
        if self._places.clients < wanted:
            self.journal.write(
                "connections_limited", wanted=wanted, taken=self._places.clients, openFiles=descriptors.limit()
            )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._beat()
            self._ports.tick()
            self._desk.tick()
            self._pool.expire()
            if self._certificate is not None and (failed := self._certificate.news(self._clock())):
                self.journal.write("handshakes_failed", **failed)
            if self._standing.is_over:
                self._drained.set()
            if self._standing.stay():
                self._drained.clear()

    def _beat(self) -> None:
        if self._heart is not None:
            self._heart.beat()

    async def _leave(self) -> None:
        self._standing.leave(final=True)
        await self._drained.wait()
        self._desk.end_all(refuse(Code.DRAINING), Outcome.DRAINED)
        self.books.check_integrity()
        self._say_last_report()

    def _say_last_report(self) -> None:
        report = self._reporter.report()
        totals = [tenant.total for tenant in report.tenants]
        admitted, rejected = sum(each.admitted for each in totals), sum(sum(each.rejected.values()) for each in totals)
        reserved = None if report.pool is None else report.pool.reserved
        self.journal.write("stopped", admitted=admitted, rejected=rejected, reserved=reserved)

    # How it is put together.

    def _assemble(self) -> None:
        settings = self.settings
        self._pool = EnginePool(settings.engine, self._spawn, self._clock)
        self._desk = Desk(
            books=self.books,
            ratios=Ratios(),
            pool=self._pool,
            tokenizer=Tokenizer(self._pool),
            tally=self.tally,
            journal=self.journal,
            clock=self._clock,
            new_id=numbered(secrets.token_hex(8)),
            silence_seconds=settings.silence_seconds,
        )
        self._standing = Standing(
            Drain(settings.lame_duck_seconds, settings.drain_seconds),
            policy=settings.failure_policy,
            pod_uid=settings.pod_uid,
            adopt=self._configure,
            keep=self._keepsake.keep,
            running=lambda: self._desk.at_work,
            settled=self._settled,
            clock=self._clock,
            journal=self.journal,
            tally=self.tally,
        )
        self._engine = self._make_watch()
        self._reporter = Reporter(
            self.books,
            self._standing,
            self._engine.usage,
            self._desk.ratios.error,
            epoch=secrets.token_hex(8),
            clock=self._clock,
            wall=self._wall,
        )
        self._files = FileWatch(self._watched_files(), settings.files_seconds)
        self._make_hubs()

    def _make_hubs(self) -> None:
        patience = replace(self.settings.patience, max_connections=self._places.clients)
        self._traffic_hub = Hub[Admittance](self._make_traffic(), patience, self._clock, self._wall)
        near = (*self.settings.node_addresses, *gateways())
        patience = replace(_ADMIN_PATIENCE, max_connections=self._places.admin)
        self._admin_hub = Hub[AdminContext](
            self._make_admin(near), patience, self._clock, self._wall, keeps_place=lambda ends: is_near(ends, near)
        )
        self._ports = Ports(
            self._traffic_hub,
            self._admin_hub,
            certificate=self._certificate,
            places=self._places,
            journal=self.journal,
        )

    def _make_watch(self) -> EngineWatch:
        return EngineWatch(
            MetricsSampler(self._pool, engine_type=self._engine_type, wall=self._wall),
            self._observe,
            self.tally,
            self._clock,
            self.settings.sample_seconds,
            hurried=lambda: self.books.someone_waits,
            silent=lambda fields: self.journal.write("engine_silent", missing=", ".join(fields)),
            load=self._load,
        )

    def _load(self) -> Load:
        """What was let through without a quota is not in the books, and was seen all the same."""
        begun = self.books.begun + self.tally.passed_unconfigured
        return Load(given=self.books.sequences, cut=self.books.cut, begun=begun)

    def _engine_type(self) -> str | None:
        config = self._standing.documents.config
        return None if config is None else config.engine_type

    def _make_traffic(self) -> Traffic:
        return Traffic(
            self._desk,
            self._standing,
            policy=self.settings.failure_policy,
            salt_key=secrets.token_bytes(32),
            wall=self._wall,
        )

    def _make_admin(self, near: tuple[str, ...]) -> Admin:
        return Admin(
            standing=self._standing,
            engine=self._engine,
            pool=self._pool,
            token=self._token,
            node_addresses=near,
            sync=self.sync,
            report=self._reporter.report,
            metrics=Exposition(self._reporter.report, self.tally, self._vitals).render,
            drained=self._drained,
            spawn=self._spawn,
            drain_hook=self.settings.drain_hook,
        )

    def _watched_files(self) -> tuple[WatchedFile, ...]:
        files, standing = [], self._standing
        if self.settings.identity is not None:
            folder = self.settings.identity
            files.append(WatchedFile(folder / TOKEN_KEY, self._token.take))
            files.append(WatchedFile(folder / IDENTITY_KEY, lambda data: standing.offer_identity(data, "File")))
        if self.settings.config is not None:
            files.append(WatchedFile(self.settings.config, lambda data: standing.offer_config(data, "File")))
        if self.settings.tls is not None:
            files.append(WatchedFile(self.settings.tls.certificate, self._certify))
            files.append(WatchedFile(self.settings.tls.key, self._certify))
        return tuple(files)

    def _certify(self, _content: bytes) -> None:
        """A file of the certificate has changed; one of two that were written apart may be a moment behind."""
        if self._certificate is None:
            return
        try:
            self._certificate.reload()
        except CertificateError as error:
            self.tally.configs_rejected["InvalidCertificate"] += 1
            self.journal.write("rejected", reason="InvalidCertificate", message=str(error))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.create_task(work)

    def _configure(self, config: PodConfig) -> None:
        self.books.configure(config, self._clock())
        self._desk.turn()

    def _settled(self) -> bool:
        return self.books.is_calm or self._clock() - self._started_at >= self.settings.settle_seconds

    def _observe(self, sample: EngineSample) -> None:
        self.books.observe(sample, self._clock())
        self._desk.turn()

    def _vitals(self) -> Vitals:
        return Vitals(
            connections=len(self._traffic_hub.connections),
            connections_turned_away=self._traffic_hub.turned_away,
            connections_made_room=self._traffic_hub.made_room,
            engine_connections=self._pool.open_links,
            running=len(self._desk.running),
            draining=self._standing.is_leaving,
            configured=self._standing.directory is not None,
            waiting=len(self._desk.waiting),
            counting=len(self._desk.counting),
            estimate_error=self._desk.ratios.error(),
            unsaid=self._engine.unsaid,
            restarts={} if self._inherited is None else self._inherited.restarts,
            sync_age_seconds=None if self._heard_at is None else self._clock() - self._heard_at,
            log_lines_left_out=self.journal.left_out,
            handshakes_failed={} if self._certificate is None else self._certificate.failed,
        )
