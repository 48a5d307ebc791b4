"""A fault of the sidecar's own at any point of a request's life: nothing stays held, and nothing is released twice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from kvquota_sidecar.proxy import clerk
from kvquota_sidecar.proxy.client_side import ClientConnection
from kvquota_sidecar.proxy.desk import Desk
from kvquota_sidecar.proxy.engine_side import EngineCall
from kvquota_sidecar.proxy.hub import Hub
from kvquota_sidecar.proxy.metering import StreamMeter
from raw_faults import SCENARIOS, Faults, Releases, Scenario, play_with_every_fault, theatre
from sidecar_rig import Running, on_both_loops


def watch(faults: Faults, patch: pytest.MonkeyPatch, owner: Any, *names: str) -> None:
    for name in names:
        patch.setattr(owner, name, watched(faults, f"{owner!r}.{name}", getattr(owner, name)))


def watched(faults: Faults, point: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def watching(*args: Any, **kwargs: Any) -> Any:
        faults.pass_by(point)
        return call(*args, **kwargs)

    return watching


@contextmanager
def watched_everywhere(faults: Faults, running: Running) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        watch_all(faults, patch, running)
        yield


def watch_all(faults: Faults, patch: pytest.MonkeyPatch, running: Running) -> None:
    sidecar, desk = running.sidecar, running.sidecar._desk
    watch(faults, patch, sidecar.books, "ask", "grow", "settle", "sent", "turn", "room", "count_refusal")
    watch(faults, patch, desk.ratios, "estimate", "learn")
    watch(faults, patch, desk.pool, "call")
    watch(faults, patch, desk.journal, "write")
    watch(faults, patch, desk.tokenizer, "count")
    watch(faults, patch, desk, "new_id")
    watch(faults, patch, clerk, "read_shape", "engine_body", "engine_request")
    watch(faults, patch, StreamMeter, "feed", "rest")
    watch(faults, patch, EngineCall, "pause", "resume", "cancel")
    patch.setattr(Desk, "tick", surviving(Desk.tick, faults))
    patch.setattr(Hub, "expire", surviving(Hub.expire, faults))
    watch(faults, patch, ClientConnection, "attach", "let_go", "answer", "begin", "write", "end")


def surviving(tick: Callable[[Any], None], faults: Faults) -> Callable[[Any], None]:
    """On the tick a fault ends the process; here the books are to be seen after it."""

    def ticking(owner: Any) -> None:
        with suppress(faults.kind):
            tick(owner)

    return ticking


def noted(books: Any) -> Releases:
    releases = Releases()
    release = books.release

    def noting(ticket: int, *args: Any) -> None:
        releases.back.append(ticket)
        release(ticket, *args)

    books.release = noting
    return releases


@pytest.mark.interpreted
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
@on_both_loops
async def test_nothing_stays_held_and_nothing_is_released_twice(scenario: Scenario) -> None:
    async with theatre(watched_everywhere) as house:
        house.releases = noted(house.running.sidecar.books)
        await play_with_every_fault(house, scenario)
