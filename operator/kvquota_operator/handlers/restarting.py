"""When what ended is begun anew, and when that is no use.

Invariants:

1. What has lived for LASTING_SECONDS begins with a clean slate: all that ended before it is forgotten.
2. Pauses grow from FIRST_PAUSE_SECONDS to LONGEST_PAUSE_SECONDS, each shortened by up to a quarter, so that replicas do
   not come back in step.
3. Where nothing has lasted for GIVE_UP_SECONDS, the end is final: whatever is wrong, it is not cured by another try,
   and a bug must not be hidden by tries for ever.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NoReturn

from kvquota_api.meta import API_VERSION
from kvquota_operator.logs import told
from kvquota_operator.ports import Clock, PortError

FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 5.0  # how late it is back, at worst; it begins with a dozen requests: no storm
LASTING_SECONDS: Final = 60.0  # a life that is cut short by what ended the one before is over within seconds
GIVE_UP_SECONDS: Final = 900.0  # a kubelet starts a container without delay again that has run for ten minutes

PATH: Final = f"/apis/{API_VERSION}"  # of both kinds

Jitter = Callable[[], float]  # from 0 to 1

log = logging.getLogger(__name__)


class WatchingEndedError(RuntimeError):
    """Nobody tells of changes any more, and no further try would help."""


def doubling(first: float, longest: float) -> Iterator[float]:
    """`first`, twice that, and so on up to `longest`, which is repeated without end."""
    while True:
        yield first
        first = min(2 * first, longest)


class Patience:
    """How long to wait after each end."""

    def __init__(self, jitter: Jitter) -> None:
        self._jitter = jitter
        self._first_end: float | None = None
        self._pauses = doubling(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)

    def pause(self, began: float, ended: float) -> float | None:
        """Seconds until the next try, after a life from `began` to `ended`; None where there is to be none."""
        if self._first_end is None or ended - began >= LASTING_SECONDS:
            self._first_end = ended
            self._pauses = doubling(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        if ended - self._first_end >= GIVE_UP_SECONDS:
            return None
        return next(self._pauses) * (1 - self._jitter() / 4)


async def restarting(
    live: Callable[[], Awaitable[BaseException | None]],
    clock: Clock,
    *,
    restarted: Callable[[str], None],
    jitter: Jitter = random.random,
) -> NoReturn:
    """Await `live()`, which returns what ended it, again and again. `restarted` is told the reason of each end.

    Raises WatchingEndedError, from the last of these errors, when it is no use any more.
    """
    patience = Patience(jitter)
    while True:
        began = clock.monotonic()
        error = await live()
        reason, said = _told(error)
        pause = patience.pause(began, clock.monotonic())
        if pause is None:
            raise WatchingEndedError(
                f"the watch of pools and quotas has not lasted for {LASTING_SECONDS:g} s in {GIVE_UP_SECONDS:g} s "
                f"({reason}: {said}); the process ends, to be started again"
            ) from error
        restarted(reason)
        log.warning(
            "the watch of pools and quotas ended (%s: %s); it is begun anew in %.1f s, and what is known holds on",
            reason,
            said,
            pause,
            extra=told("watch_broke", path=PATH, reason=reason),
        )
        await asyncio.sleep(pause)


def _told(error: BaseException | None) -> tuple[str, str]:
    """A reason as one word, and a text; of what is no text in an error, its type says enough."""
    if error is None:
        return "Ended", "without an error"
    reason = error.reason if isinstance(error, PortError) else type(error).__name__
    return reason, next((each for each in error.args if isinstance(each, str)), str(error))
