"""kopf, set up to do one thing: tell of changes, quickly and for ever.

It runs in a thread and a loop of its own: at its end it cancels every task of its loop, and in the main thread it takes
over the process's signals, neither of which is its business where the operator runs inside another program.

kopf tries again after errors of the server and of the connection, and after 403 and 429. Every other refusal of a
watch ends it (401 for a token that is still the same, 404, 409, 410, 422), and so does an answer that it cannot read.
None of this is a reason for the operator to end: it leads, and has watches of its own for everything else.

What kopf cannot end by itself is a thread that hangs. So a task of its loop says every second that the loop runs, and
the probe asks when it last did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

import kopf

from kvquota_operator.handlers.apart import apart
from kvquota_operator.handlers.events import HandlerDeps, register
from kvquota_operator.handlers.restarting import LASTING_SECONDS, doubling, restarting
from kvquota_operator.ports import Clock, ForbiddenError, NotServedError, PutBackError

INACTIVITY_SECONDS: Final = 70.0
FIRST_BACKOFF_SECONDS: Final = 1.0
LONGEST_BACKOFF_SECONDS: Final = 15.0
ENDING_SECONDS: Final = 3.0  # kopf gives its watchers 2 s
CLOSING_SECONDS: Final = 0.1  # a closed TLS connection still exchanges its last messages, for which the loop must run
UNWATCHED_SECONDS: Final = LASTING_SECONDS  # so that an API server that is away all the time is nothing to give up for
STOP_SECONDS: Final = 15.0  # more than all of this together
BEAT_SECONDS: Final = 1.0
WATCHER: Final = "watcher for "  # how kopf names the task of one watch


class ForEver:
    """Waiting times between tries that do not run out: 1, 2, 4, 8, then 15 seconds each.

    With a list of them kopf ends after the last, and an API server that is away for ten minutes would end it again and
    again instead of finding it waiting.
    """

    def __iter__(self) -> Iterator[float]:
        return doubling(FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS)


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
    # By default it kills the process ten minutes after it began to end, if it has not come to its end by then.
    settings.process.ultimate_exiting_timeout = None
    # Only `on.event` is used, so kopf never patches an object; should that change, not in the status, which has one
    # writer and a schema that would prune it.
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix="operator.kvquota.dev")
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix="operator.kvquota.dev")
    return settings


class Framework:
    """kopf over `namespaces` (none: all of the cluster). `restarted` is told the reason whenever it is begun anew."""

    def __init__(
        self, namespaces: tuple[str, ...], deps: HandlerDeps, clock: Clock, *, restarted: Callable[[str], None]
    ) -> None:
        self._namespaces = namespaces
        self._deps = deps
        self._clock = clock
        self._restarted = restarted
        self._beaten_at: float | None = None
        self._end_life: Callable[[], object] | None = None

    def begin_anew(self) -> None:
        """The API server's store was put back: kopf would wait for versions that may never come, so it is to list."""
        if self._end_life is not None:
            with suppress(RuntimeError):  # it has just ended by itself: its loop is closed
                self._end_life()

    def stillness(self) -> float:
        """Seconds since the loop of kopf last ran, its life before the next one included; 0 until `run`."""
        return 0.0 if self._beaten_at is None else self._clock.monotonic() - self._beaten_at

    async def run(self, ready: asyncio.Event) -> None:
        """Run until cancelled; sets `ready` when the watches start for the first time. Raises WatchingEndedError."""
        self._beaten_at = self._clock.monotonic()
        work = partial(self._kopf, asyncio.get_running_loop(), ready)
        await restarting(partial(apart, work, stop_seconds=STOP_SECONDS), self._clock, restarted=self._restarted)

    async def _kopf(self, home: asyncio.AbstractEventLoop, ready: asyncio.Event, stop: asyncio.Event) -> None:
        """One life of kopf: until `stop` is set, or one of its tasks ends. Raises what that ended with."""
        asyncio.get_running_loop().set_exception_handler(_unheard)
        registry = kopf.OperatorRegistry()
        register(registry, self._deps)
        started = asyncio.Event()
        tasks = await kopf.spawn_tasks(
            registry=registry,
            settings=kopf_settings(),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=stop,
            ready_flag=started,
        )
        telling = asyncio.create_task(_tell(started, home, ready))
        looking = asyncio.create_task(_look(2 * max(1, len(set(self._namespaces)))))
        beating = asyncio.create_task(self._beat())
        outliving = asyncio.create_task(self._outlive())
        ended, _ = await asyncio.wait([*tasks, looking, outliving], return_when=asyncio.FIRST_COMPLETED)
        await _end([*tasks, telling, looking, beating, outliving])
        try:
            for task in ended:
                task.result()
        except kopf.LoginError as error:
            raise ForbiddenError("401: the API server refuses the token, which is read anew for every try") from error

    async def _outlive(self) -> None:
        """Raises PutBackError once this life is of no use."""
        over = asyncio.Event()
        self._end_life = partial(asyncio.get_running_loop().call_soon_threadsafe, over.set)
        await over.wait()
        raise PutBackError("the API server's store was put back to an earlier state")

    async def _beat(self) -> None:
        """In the loop of kopf: as long as it runs, so does this."""
        while True:
            self._beaten_at = self._clock.monotonic()
            await asyncio.sleep(BEAT_SECONDS)


def _unheard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what nobody has asked for, but for errors of tasks: where two fail at once, kopf asks for one and ends."""
    if "future" not in context:
        loop.default_exception_handler(context)


async def _tell(started: asyncio.Event, home: asyncio.AbstractEventLoop, ready: asyncio.Event) -> None:
    await started.wait()
    home.call_soon_threadsafe(ready.set)


async def _look(wanted: int) -> None:
    """Raises NotServedError when there are fewer than `wanted` watches.

    kopf asks once which kinds there are, and where they are not known just then it waits for nothing, for ever.
    """
    while True:
        await asyncio.sleep(UNWATCHED_SECONDS)
        if len(_watches()) < wanted:
            raise NotServedError(
                "not all watches have begun: the API server is away, or the resources of kvquota.dev are not installed "
                "(`kubectl apply -f crds/`)"
            )


def _watches() -> set[asyncio.Task[Any]]:
    return {each for each in asyncio.all_tasks() if each.get_name().startswith(WATCHER)}


async def _end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """End `tasks` and the watches that are left, and with them what they have set going.

    `kopf.run_tasks` gives the other watches 5 s first where one has failed, in which nobody tells them to end.
    """
    ending = _watches().union(tasks)
    for task in ending:
        task.cancel()
    await asyncio.wait(ending, timeout=ENDING_SECONDS)
    await asyncio.sleep(CLOSING_SECONDS)
