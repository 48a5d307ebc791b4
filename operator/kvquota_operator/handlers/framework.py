"""kopf, set up to do one thing: tell of changes, quickly and for ever.

It runs in a thread and a loop of its own: at its end it cancels every task of its loop, and in the main thread it takes
over the process's signals, neither of which is its business where the operator runs inside another program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import kopf

from kvquota_operator.handlers.events import HandlerDeps, register

INACTIVITY_SECONDS: Final = 70.0
LONGEST_BACKOFF_SECONDS: Final = 15.0
CLOSING_SECONDS: Final = 0.1  # a closed TLS connection still exchanges its last messages, for which the loop must run
STOP_SECONDS: Final = 15.0  # kopf gives its tasks 5 s to end, and its watchers 2 s


class WatchingEndedError(RuntimeError):
    """kopf ended by itself: nobody tells of changes any more."""


class ForEver:
    """Waiting times between tries that do not run out: 1, 2, 4, 8, then 15 seconds each.

    With a list of them kopf ends after the last, and an API server that is away for ten minutes would restart the
    operator instead of finding it waiting.
    """

    def __iter__(self) -> Iterator[float]:
        seconds = 1.0
        while True:
            yield min(seconds, LONGEST_BACKOFF_SECONDS)
            seconds = min(2 * seconds, LONGEST_BACKOFF_SECONDS)


def kopf_settings() -> kopf.OperatorSettings:
    """Each setting that is not kopf's default, with its reason."""
    settings = kopf.OperatorSettings()
    # Log lines are no events of an object: the operator writes its own, at a bounded rate.
    settings.posting.enabled = False
    # No peering: it is no leader election, and two operators of equal priority freeze each other.
    settings.peering.standalone = True
    # No listing of namespaces and CRDs: both are known from the start, and need cluster-wide rights.
    settings.scanning.disabled = True
    # Load balancers drop idle connections without a word; bookmarks come every 60 s.
    settings.watching.inactivity_timeout = INACTIVITY_SECONDS
    # A watch that the server ends regularly is one that a broken middle box cannot keep for ever.
    settings.watching.server_timeout = 300
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = ForEver()
    # Only `on.event` is used, so kopf never patches an object; should that change, not in the status, which has one
    # writer and a schema that would prune it.
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix="operator.kvquota.dev")
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix="operator.kvquota.dev")
    return settings


class Framework:
    """One run of kopf over `namespaces` (none: all of the cluster)."""

    def __init__(self, namespaces: tuple[str, ...], deps: HandlerDeps) -> None:
        self._namespaces = namespaces
        self._deps = deps
        self._stop: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._stopping = False

    async def run(self, ready: asyncio.Event) -> None:
        """Run until cancelled; sets `ready` when the watches start. Raises WatchingEndedError, or what ended kopf."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="kopf") as thread:
            work = loop.run_in_executor(thread, lambda: asyncio.run(self._kopf(loop, ready)))
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                self._ask_to_stop()
                await asyncio.wait([work], timeout=STOP_SECONDS)
                raise
        raise WatchingEndedError("kopf ended without an error; the operator ends too, to be started again")

    def _ask_to_stop(self) -> None:
        self._stopping = True
        if self._stop is not None:
            loop, flag = self._stop
            loop.call_soon_threadsafe(flag.set)

    async def _kopf(self, home: asyncio.AbstractEventLoop, ready: asyncio.Event) -> None:
        stop, started = asyncio.Event(), asyncio.Event()
        self._stop = (asyncio.get_running_loop(), stop)
        if self._stopping:
            return
        registry = kopf.OperatorRegistry()
        register(registry, self._deps)
        telling = asyncio.create_task(_tell(started, home, ready))
        try:
            await kopf.operator(
                registry=registry,
                settings=kopf_settings(),
                standalone=True,
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
                stop_flag=stop,
                ready_flag=started,
            )
        finally:
            telling.cancel()
            await asyncio.sleep(CLOSING_SECONDS)


async def _tell(started: asyncio.Event, home: asyncio.AbstractEventLoop, ready: asyncio.Event) -> None:
    await started.wait()
    home.call_soon_threadsafe(ready.set)
