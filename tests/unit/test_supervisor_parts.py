"""What lies between the supervisor and its child: sockets, signs of life, and the last documents."""

import errno
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvquota_api import pod_config
from kvquota_api.usage import Source
from kvquota_sidecar.channel.adoption import Documents
from kvquota_sidecar.inheritance import BEAT_SECONDS, Heart, Keepsake, inheritance
from kvquota_sidecar.listening import Listeners, address
from kvquota_sidecar.settings import Bind, Settings
from kvquota_sidecar.supervisor import MAX_EARLY, SUPERVISED, Supervisor
from sidecar_rig import ManualClock, config, identity


def settings(listen: Bind, admin: Bind) -> Settings:
    return Settings(listen=listen, admin=admin)


ANY = Bind("127.0.0.1", 0)

# Sockets.


def test_sockets_are_the_same_in_the_process_that_inherits_them() -> None:
    bound = Listeners.bound(settings(ANY, ANY))
    where = (address(bound.traffic), address(bound.admin))
    handed_on = bound.handed_on()
    assert all(os.get_inheritable(each) for port in handed_on.values() for each in port)
    inherited = Listeners.inherited(handed_on)
    assert (address(inherited.traffic), address(inherited.admin)) == where
    socket.create_connection((where[0].host, where[0].port)).close()  # it listens already
    inherited.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((where[0].host, where[0].port))


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
@pytest.mark.parametrize("missing", [set(), {socket.AF_INET6}, {socket.AF_INET}])
def test_without_a_host_it_listens_on_every_kind_of_address_that_the_machine_has(
    monkeypatch: pytest.MonkeyPatch, missing: set[int]
) -> None:
    made = socket.socket

    def make(family: int = -1, kind: int = -1, **given: Any) -> socket.socket:
        if family in missing:
            raise OSError(errno.EAFNOSUPPORT, "no such family")
        return made(family, kind, **given)

    monkeypatch.setattr(socket, "socket", make)
    listeners = Listeners.bound(settings(Bind("", 0), Bind("::1" if socket.AF_INET in missing else "127.0.0.1", 0)))
    families = {each.family for each in listeners.traffic}
    listeners.close()
    assert families == {socket.AF_INET, socket.AF_INET6} - missing


def test_a_host_of_a_kind_that_the_machine_does_without_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*_: int) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, "no such family")

    monkeypatch.setattr(socket, "socket", make)
    with pytest.raises(OSError, match="cannot listen on ::1: this machine has no such addresses"):
        Listeners.bound(settings(Bind("::1", 0), ANY))


def test_a_port_is_shared_with_nobody() -> None:
    listeners = Listeners.bound(settings(ANY, ANY))
    shared = [
        each.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) for each in (*listeners.traffic, *listeners.admin)
    ]
    listeners.close()
    assert shared == [0, 0]


def test_where_the_second_port_is_taken_the_first_is_given_back_and_the_error_says_which() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_server(("127.0.0.1", 0)) as first:
        free, taken = first.getsockname()[1], other.getsockname()[1]
        first.close()
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1, port {taken}: Address already in use"):
            Listeners.bound(settings(Bind("127.0.0.1", free), Bind("127.0.0.1", taken)))
        socket.create_server(("127.0.0.1", free)).close()


def test_a_process_that_is_nobodys_child_inherits_nothing() -> None:
    assert inheritance({}) is None


def test_what_a_child_inherits_is_in_its_environment() -> None:
    given = Listeners.bound(settings(ANY, ANY)).handed_on()
    environ = {SUPERVISED: json.dumps({**given, "beat": 7, "life": 8, "kept": 9, "restarts": {"killed": 2}})}
    inherited = inheritance(environ)
    assert inherited is not None
    inherited.listeners.close()
    assert (inherited.beat, inherited.life, inherited.kept, inherited.restarts) == (7, 8, 9, {"killed": 2})


# Signs of life.


def test_the_heart_beats_at_its_own_pace_and_never_waits_for_a_reader() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    clock = ManualClock()
    heart = Heart(writer, clock)
    for _ in range(3):
        heart.beat()
    clock.now += BEAT_SECONDS
    heart.beat()
    assert os.read(reader, 100) == b".."
    with open(writer, "wb", buffering=0, closefd=False) as pipe:
        while pipe.write(b"x" * 4096):
            pass
    clock.now += BEAT_SECONDS
    heart.beat()
    os.close(reader)
    clock.now += BEAT_SECONDS
    heart.beat()
    os.close(writer)


# The last documents.


@pytest.fixture
def descriptor() -> Iterator[int]:
    descriptor = os.memfd_create("kept")
    yield descriptor
    os.close(descriptor)


class Offered:
    """What was offered, in order."""

    def __init__(self, keepsake: Keepsake) -> None:
        self.documents: list[tuple[str, bytes, Source]] = []
        keepsake.offer(
            lambda data, source: self.documents.append(("identity", data, source)),
            lambda data, source: self.documents.append(("config", data, source)),
        )


def test_the_next_child_is_offered_what_was_in_force_last(descriptor: int) -> None:
    first, last, known = config(tenants=()), config(generation=2), identity()
    Keepsake(descriptor).keep(Documents(first, None, "File"))
    Keepsake(descriptor).keep(Documents(last, known, "Channel"))
    for _ in range(2):
        assert Offered(Keepsake(descriptor)).documents == [
            ("identity", pod_config.encode(known), "Channel"),
            ("config", pod_config.encode(last), "Channel"),
        ]


def test_what_a_newer_version_wrote_is_left_to_the_next_child_as_it_was_written(descriptor: int) -> None:
    newer = Path(__file__).parents[1] / "data" / "versions" / "newer"
    written = {name: (newer / f"{name}.json").read_bytes() for name in ("identity", "config")}
    read = Documents(pod_config.decode_config(written["config"]), pod_config.decode_identity(written["identity"]))
    Keepsake(descriptor).keep(read)
    assert {name: data for name, data, _ in Offered(Keepsake(descriptor)).documents} == written


def test_a_shorter_document_leaves_nothing_of_a_longer_one(descriptor: int) -> None:
    Keepsake(descriptor).keep(Documents(config(), identity(), "File"))
    Keepsake(descriptor).keep(Documents(None, identity(), "File"))
    assert [kind for kind, _, _ in Offered(Keepsake(descriptor)).documents] == ["identity"]


@pytest.mark.parametrize("written", [0, 1, 100, -1])
def test_what_a_child_did_not_finish_to_write_is_not_offered(descriptor: int, written: int) -> None:
    Keepsake(descriptor).keep(Documents(config(), identity(), "File"))
    size = os.fstat(descriptor).st_size
    os.ftruncate(descriptor, written if written >= 0 else size + written)
    assert Offered(Keepsake(descriptor)).documents == []


def test_without_a_next_child_nothing_is_kept() -> None:
    keepsake = Keepsake(None)
    keepsake.keep(Documents(config(), identity(), "File"))
    assert Offered(keepsake).documents == []


# Children that cannot be had.


def test_children_that_cannot_be_started_are_waited_for_longer_up_to_a_bound_and_get_nothing_that_may_be_the_cause(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(os, "posix_spawn", refuse)
    supervisor = Supervisor([], {}, hang_seconds=10.0)
    os.write(supervisor._kept, b"the last documents")
    left = []
    for _ in range(2000):
        left.append(os.fstat(supervisor._kept).st_size > 0)
        supervisor._due = 0.0
        supervisor._start_if_due()
    supervisor._outlet.close(seconds=20.0)
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [each["nextIn"] for each in lines][:9] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert (lines[-1]["event"], lines[-1]["nextIn"]) == ("child_not_started", 5.0)
    assert (left.count(True), left[MAX_EARLY]) == (MAX_EARLY + 1, True)
