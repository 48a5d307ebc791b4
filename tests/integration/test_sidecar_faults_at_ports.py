"""A fault of a port at any point of a request's life, compiled or not: nothing stays held, and nobody waits in vain.

Faults of the sidecar's own calls: tests/integration/test_sidecar_faults.py, on the interpreted one.
"""

import asyncio
from dataclasses import dataclass

import pytest

from raw_engine import echoing
from raw_faults import SCENARIOS, Faults, Scenario, play_with_every_fault, theatre
from raw_ports import Ports
from sidecar_rig import both_ends, chat, on_both_loops, post

KINDS = (RuntimeError, OSError)  # of a closed handle, and of the system


@pytest.mark.parametrize("first", [0, 1], ids=["in turn", "the other way round"])
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
@on_both_loops
async def test_a_port_that_fails_leaves_nothing_held(scenario: Scenario, first: int) -> None:
    ports = Ports()
    ports.open()
    async with theatre(ports.watched) as house:
        await play_with_every_fault(house, scenario, KINDS[first:] + KINDS[:first])


@dataclass(slots=True)
class FaultsAt(Faults):
    """Raises at the first call of one `name`."""

    name: str = ""

    def pass_by(self, point: str) -> None:
        if point == self.name and not self.points:
            self.points.append(point)
            raise self.kind(point)


# The request that meets the fault, and what its client gets: 0 is the first one, on a new connection to the engine.
FAULTY = {
    "a connection that is not made": ("dial", 0, 502),
    "a new connection that cannot be written to": ("EngineLink.write", 0, 502),
    "a kept one that cannot be written to": ("EngineLink.write", 1, 200),
    "one that does not say what is unsent": ("EngineLink.get_write_buffer_size", 0, 200),
    "one that does not say whether it closes": ("EngineLink.is_closing", 1, 200),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "faulty", "status"), FAULTY.values(), ids=FAULTY)
@on_both_loops
async def test_who_asks_hears_of_a_port_that_fails_and_the_next_one_does_not(
    name: str, faulty: int, status: int, kind: type[BaseException]
) -> None:
    ports, statuses = Ports(), []
    ports.open()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with both_ends() as (running, engine), echoing(engine), await running.connect() as client:
        for at in range(3):
            with ports.watched(FaultsAt(0, kind, name=name if at == faulty else ""), running):
                statuses.append((await client.ask(post(chat()))).status)
        await running.idle()
        pool = running.sidecar._desk.pool
        assert pool.open_links == 1
    assert statuses == [status if at == faulty else 200 for at in range(3)]
