"""Who gets a place where all are taken, and who goes for it; and what limits on open files leave room for."""

import errno
import os
from dataclasses import dataclass, field

import pytest

from kvquota_sidecar import descriptors
from kvquota_sidecar.descriptors import Places
from kvquota_sidecar.proxy.hub import KEPT, LOOKED_AT, NEWS_SECONDS, Hub, Patience
from kvquota_sidecar.proxy.service import Ends
from sidecar_rig import ManualClock

STRANGER, KUBELET = Ends("10.0.0.9", "10.0.0.1"), Ends("10.0.0.2", "10.0.0.1")


@dataclass(eq=False)
class Connection:
    """One that says what it is, and keeps what was done to it."""

    is_spare: bool = True
    is_known: bool = False
    deadline: float = 0.0
    done: list[str] = field(default_factory=list)

    def expire(self) -> None:
        self.done.append("expired")

    def close_if_idle(self) -> None:
        self.done.append("closed")

    def abort(self) -> None:
        self.done.append("aborted")


def hub_of(*connections: Connection, clock: ManualClock | None = None) -> Hub[str]:
    """A hub whose every place is taken."""
    most = Patience(max_connections=len(connections))
    hub = Hub[str](None, most, clock or ManualClock(), keeps_place=lambda ends: ends == KUBELET)  # type: ignore[arg-type]  # it serves nothing here
    for each in connections:
        hub.add(each)
    return hub


BUSY = {"is_spare": False}
FRIEND = {"is_known": True}


@pytest.mark.parametrize(
    ("connections", "gone"),
    [
        pytest.param([{}, {}], 0, id="of strangers the oldest"),
        pytest.param([FRIEND, {}, {}], 1, id="a stranger before one that was served"),
        pytest.param([FRIEND, FRIEND], 0, id="of those that were served the oldest"),
        pytest.param([BUSY, FRIEND], 1, id="none that is in a request"),
        pytest.param([BUSY] * (LOOKED_AT - 1) + [{}], LOOKED_AT - 1, id="the last one that is looked at"),
    ],
)
def test_the_place_of_one_in_no_request_is_given_to_who_comes(connections: list[dict[str, bool]], gone: int) -> None:
    there = [Connection(**each) for each in connections]
    hub = hub_of(*there)
    assert hub.has_place(STRANGER)
    assert [place for place, each in enumerate(there) if each.done] == [gone]
    assert (len(hub.connections), hub.made_room, hub.turned_away) == (len(there) - 1, 1, 0)


def test_those_that_were_looked_at_are_looked_at_last_the_next_time() -> None:
    there = [*(Connection(is_spare=False) for _ in range(LOOKED_AT)), Connection()]
    hub = hub_of(*there)
    assert [hub.has_place(STRANGER) for _ in range(2)] == [False, True]
    assert there[-1].done == ["aborted"]


def test_places_are_kept_for_a_few() -> None:
    hub = hub_of(Connection(is_spare=False))
    assert not hub.has_place(STRANGER)
    for _ in range(KEPT):
        assert hub.has_place(KUBELET)
        hub.add(Connection(is_spare=False))
    assert not hub.has_place(KUBELET)
    assert hub.turned_away == 2


def test_that_connections_were_too_many_is_told_once_in_a_while() -> None:
    clock = ManualClock()
    hub = hub_of(Connection(is_spare=False), Connection(), clock=clock)
    assert hub.news() is None
    assert hub.has_place(STRANGER)
    assert hub.news() == {"most": 2, "turnedAway": 0, "madeRoom": 1}
    hub.add(Connection(is_spare=False))
    assert not hub.has_place(STRANGER)
    assert hub.news() is None
    clock.now += NEWS_SECONDS
    assert hub.news() == {"most": 2, "turnedAway": 1, "madeRoom": 1}
    clock.now += NEWS_SECONDS
    assert hub.news() is None


@pytest.mark.parametrize(
    ("limit", "wanted", "expected"),
    [
        pytest.param(None, 8192, Places(8192, 64, 4096), id="no limit"),
        pytest.param(1_048_576, 8192, Places(8192, 64, 4096), id="more than enough"),
        pytest.param(1024, 8192, Places(288, 64, 128), id="what containers often get"),
        pytest.param(1024, 100, Places(100, 64, 128), id="fewer were wanted"),
        pytest.param(256, 8192, Places(48, 25, 32), id="half of little is not the clients'"),
        pytest.param(8, 8192, Places(1, 1, 1), id="next to nothing"),
    ],
)
def test_what_the_limit_leaves_room_for(limit: int | None, wanted: int, expected: Places) -> None:
    assert descriptors.places(limit, wanted) == expected


@pytest.mark.parametrize("limit", [256, 512, 640, 1024, 4096, 20_000, 65_536])
def test_two_for_each_client_a_burst_and_the_admin_port_stay_within_the_limit(limit: int) -> None:
    found = descriptors.places(limit, 10**6)
    assert 2 * found.clients + found.backlog + 2 * found.admin <= limit


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.EMFILE, True), (errno.ENFILE, True), (errno.EBADF, False)],
    ids=["of this process", "of the machine", "another fault"],
)
def test_descriptors_are_used_up_where_none_can_be_had(
    monkeypatch: pytest.MonkeyPatch, number: int, expected: bool
) -> None:
    def dup(_: int) -> int:
        raise OSError(number, "")

    monkeypatch.setattr(os, "dup", dup)
    assert descriptors.are_used_up(0) is expected
