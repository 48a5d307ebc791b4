"""Turns of a connection's life that no socket gives on demand: the transport is the test."""

import asyncio
from typing import Any

import pytest

from kvquota_sidecar.proxy.answers import Answer
from kvquota_sidecar.proxy.client_side import MAX_AHEAD_BYTES, PIECE_BYTES, ClientConnection
from kvquota_sidecar.proxy.engine_answer import AnswerHead
from kvquota_sidecar.proxy.engine_side import MAX_IDLE, EngineAddress, EngineFailure, EngineLink, EnginePool
from kvquota_sidecar.proxy.head import Fault, Head
from kvquota_sidecar.proxy.hub import Hub, Patience
from kvquota_sidecar.proxy.reading import Request
from kvquota_sidecar.proxy.service import Client, Ends
from sidecar_rig import ManualClock


class Wire:
    """A transport that keeps what is written, and says what was done to it."""

    def __init__(self) -> None:
        self.written = b""
        self.reading = True
        self.closed = ""
        self.unsent = 0

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed != ""

    def close(self) -> None:
        self.closed = "closed"

    def abort(self) -> None:
        self.closed = "aborted"

    def write_eof(self) -> None:
        raise RuntimeError("the peer has gone meanwhile")

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str) -> None:
        return None


class Echo:
    """A service that answers every request with the size of its body."""

    is_leaving = False

    def examine(self, head: Head, ends: Ends) -> str:
        return head.path

    def owner(self, context: str) -> str | None:
        return None

    def serve(self, request: Request, context: str, client: Client) -> None:
        client.answer(Answer(200, b"%d" % len(request.body)))

    def answer_fault(self, fault: Fault, head: Head | None, context: object) -> Answer:
        return Answer(fault.status)


async def connection_of(wire: Wire, clock: ManualClock | None = None) -> ClientConnection[str]:
    connection = ClientConnection(Hub(Echo(), Patience(), clock or ManualClock()))
    connection.connection_made(wire)  # type: ignore[arg-type]  # a fake of what is used
    return connection


def post(body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body


async def test_a_body_that_waits_behind_a_full_client_is_read_on_once_there_is_room() -> None:
    wire = Wire()
    connection = await connection_of(wire)
    whole = post(b"x" * (3 * MAX_AHEAD_BYTES))
    connection.pause_writing()
    connection.data_received(whole[: 2 * MAX_AHEAD_BYTES])
    assert (wire.reading, wire.written) == (False, b"")
    connection.resume_writing()
    assert wire.reading
    connection.data_received(whole[2 * MAX_AHEAD_BYTES :])
    assert wire.written.endswith(b"\r\n\r\n%d" % (3 * MAX_AHEAD_BYTES))


async def test_a_body_in_tiny_pieces_counts_for_what_the_pieces_take() -> None:
    connection = await connection_of(Wire())
    connection.data_received(post(b"x" * 5000)[:-4000])
    before = connection._hub.buffers.total_bytes
    for _ in range(1000):
        connection.data_received(b"xx")
    assert connection._hub.buffers.total_bytes - before == 1000 * (2 + PIECE_BYTES)
    connection.data_received(b"x" * 2000)
    assert connection._hub.buffers.total_bytes == 0


async def test_empty_lines_before_a_request_count_for_nothing() -> None:
    connection = await connection_of(Wire())
    held = connection._hub.buffers
    for _ in range(100):
        connection.data_received(b"\r\n")
        assert held.total_bytes == 0
    connection.data_received(b"\r\nPOST")
    assert held.total_bytes == len(b"\r\nPOST") + PIECE_BYTES


async def test_a_client_that_has_gone_while_it_is_refused_is_closed_without_a_fuss() -> None:
    wire, clock = Wire(), ManualClock()
    connection = await connection_of(wire, clock)
    connection.data_received(b"nonsense\r\n\r\n")
    connection.data_received(post(b"late"))
    assert wire.written.startswith(b"HTTP/1.1 400 ")
    assert wire.written.count(b"HTTP/1.1") == 1
    connection.pause_writing()
    connection.resume_writing()
    clock.now = connection.deadline
    connection.expire()
    assert wire.closed == "aborted"


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def answer_head(self, head: AnswerHead) -> None:
        self.heard.append(head.status)

    def answer_data(self, data: bytes) -> None:
        self.heard.append(data)

    def answer_end(self) -> None:
        self.heard.append("end")

    def answer_broken(self, failure: EngineFailure) -> None:
        self.heard.append(failure.kind)


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab"


def pool_of(clock: ManualClock | None = None) -> EnginePool:
    return EnginePool(EngineAddress("127.0.0.1", 9), asyncio.get_running_loop().create_task, clock or ManualClock())


def link_to(pool: EnginePool) -> tuple[EngineLink, Wire]:
    """An idle connection of the pool."""
    link, wire = EngineLink(pool), Wire()
    link.connection_made(wire)  # type: ignore[arg-type]  # a fake of what is used
    pool.idled(link)
    return link, wire


async def test_a_call_that_is_paused_as_its_answer_ends_leaves_a_connection_that_reads() -> None:
    pool = pool_of()
    link, wire = link_to(pool)
    heard = Heard()
    call = pool.call(b"1", heard)
    call.pause()
    assert not wire.reading
    link.data_received(ANSWER)
    assert heard.heard == [200, b"ab", "end"]
    assert wire.reading
    assert pool.take_idle() is link


async def test_a_listener_that_gives_up_in_the_middle_hears_nothing_more() -> None:
    pool = pool_of()
    for last in (200, b"ab"):
        link, wire = link_to(pool)
        heard = Heard()
        call = pool.call(b"1", heard)

        def note(event: Any, heard: Heard = heard, call: Any = call, last: Any = last) -> None:
            heard.heard.append(event)
            if event == last:
                call.cancel()

        heard.answer_head = lambda head, note=note: note(head.status)  # type: ignore[method-assign, misc]  # a fake of what is used
        heard.answer_data = note  # type: ignore[method-assign]  # a fake of what is used
        link.data_received(ANSWER)
        assert heard.heard[-1] == last
        assert wire.closed == "aborted"
        assert pool.take_idle() is None


async def test_a_connection_that_has_not_sent_its_request_yet_is_not_used_again() -> None:
    pool = pool_of()
    link, wire = link_to(pool)
    pool.call(b"a long request", Heard())
    wire.unsent = 5
    link.data_received(ANSWER)
    assert (wire.closed, pool.take_idle()) == ("aborted", None)


async def test_idle_connections_are_bounded_and_leave_before_the_engine_closes_them() -> None:
    clock = ManualClock()
    pool = pool_of(clock)
    links = [link_to(pool) for _ in range(MAX_IDLE + 1)]
    assert [wire.closed for _, wire in links] == [""] * MAX_IDLE + ["aborted"]
    for link, _ in links[:MAX_IDLE]:
        link.idle_since = clock.now
    links[0][0].idle_since = clock.now - 4.0
    pool.expire()
    assert [wire.closed for _, wire in links[:2]] == ["aborted", ""]
    pool.close()
    assert {wire.closed for _, wire in links} == {"aborted"}
    assert pool.take_idle() is None


async def test_a_connection_that_is_made_for_a_call_that_was_given_up_meanwhile_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = pool_of()
    link, wire = EngineLink(pool), Wire()
    link.connection_made(wire)  # type: ignore[arg-type]  # a fake of what is used
    dialled: asyncio.Future[EngineLink] = asyncio.get_running_loop().create_future()

    async def connect(*_: object) -> tuple[Wire, EngineLink]:
        return wire, await asyncio.shield(dialled)

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connect)
    heard = Heard()
    call = pool.call(b"1", heard)
    await asyncio.sleep(0)
    dialled.set_result(link)
    call._over = True
    await asyncio.sleep(0.01)
    assert (wire.closed, wire.written, heard.heard) == ("aborted", b"", [])


async def test_an_engine_that_does_not_take_the_connection_in_time_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of()

    async def connect(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connect)
    heard = Heard()
    pool.call(b"1", heard)
    await asyncio.sleep(0.01)
    assert heard.heard == ["Silent"]
