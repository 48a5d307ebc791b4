"""Answers out of the engine's bytes: every case whole and split at every byte."""

import pytest

from kvquota_sidecar.proxy.engine_answer import (
    MAX_HEAD_BYTES,
    MAX_KNOWN,
    AnswerError,
    AnswerHead,
    AnswerHeads,
    AnswerReader,
)

OK = b"HTTP/1.1 200 OK\r\n"
Seen = tuple[AnswerHead | None, bytes, bool] | str


def read(parts: list[bytes], *, closed: bool = False) -> Seen:
    """Head, body, whether it is done; or "fault"."""
    reader, body = AnswerReader(AnswerHeads()), b""
    try:
        for part in parts:
            body += reader.feed(part)
        if closed and not reader.done:
            reader.end_of_input()
    except AnswerError:
        return "fault"
    return reader.head, body, reader.done


def every_way(data: bytes, *, closed: bool = False) -> Seen:
    whole = read([data], closed=closed)
    assert all(read([data[:at], data[at:]], closed=closed) == whole for at in range(len(data)))
    assert read([data[at : at + 1] for at in range(len(data))], closed=closed) == whole
    return whole


def head(status: int, length: int | None, *headers: tuple[bytes, bytes], keeps: bool = True) -> AnswerHead:
    """Nothing of these headers is for a client."""
    in_chunks = any(name == b"transfer-encoding" for name, _ in headers)
    left = tuple(pair for pair in headers if pair[0] != b"content-length")
    return AnswerHead(status, left, length, in_chunks=in_chunks, keep_alive=keeps)


GOOD: dict[str, tuple[bytes, AnswerHead, bytes]] = {
    "a length": (OK + b"Content-Length: 2\r\n\r\nab", head(200, 2, (b"content-length", b"2")), b"ab"),
    "chunks": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2;x=y\r\nbc\r\n0\r\nTrailer: x\r\n\r\n",
        head(200, None, (b"transfer-encoding", b"chunked")),
        b"abc",
    ),
    "no body": (b"HTTP/1.1 204 No Content\r\n\r\n", head(204, 0), b""),
    "no body, whatever the length says": (
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
        head(304, 0, (b"content-length", b"5")),
        b"",
    ),
    "an empty body": (OK + b"Content-Length: 0\r\n\r\n", head(200, 0, (b"content-length", b"0")), b""),
    "a last answer": (
        OK + b"Connection: close\r\nContent-Length: 1\r\n\r\na",
        head(200, 1, (b"connection", b"close"), (b"content-length", b"1"), keeps=False),
        b"a",
    ),
    "HTTP/1.0": (
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na",
        head(200, 1, (b"content-length", b"1"), keeps=False),
        b"a",
    ),
    "interim answers before it": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK + b"Content-Length: 0\r\n\r\n",
        head(200, 0, (b"content-length", b"0")),
        b"",
    ),
    "spaces around a value": (
        OK + b"Content-Length:   0  \r\n\r\n",
        head(200, 0, (b"content-length", b"0")),
        b"",
    ),
}


@pytest.mark.parametrize(("data", "expected", "body"), GOOD.values(), ids=GOOD)
def test_an_answer_is_read_however_it_is_cut(data: bytes, expected: AnswerHead, body: bytes) -> None:
    assert every_way(data) == (expected, body, True)


def test_what_a_client_is_to_see_of_a_head_is_ready_to_be_sent() -> None:
    data = OK + b"Server: x\r\nConnection: X-Hop\r\nX-Hop: y\r\nDate: now\r\nContent-Length: 0\r\n\r\n"
    reader = AnswerReader(AnswerHeads())
    reader.feed(data)
    assert reader.head is not None
    assert reader.head.fields == b"date: now\r\nserver: x\r\n"


def test_a_body_that_the_end_of_the_connection_ends() -> None:
    assert every_way(OK + b"\r\nabc", closed=True) == (head(200, None, keeps=False), b"abc", True)


CUT = {
    "before the head": b"HTTP/1.1 20",
    "in the body": OK + b"Content-Length: 9\r\n\r\nabc",
    "in the chunks": OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    "after an interim answer": b"HTTP/1.1 100 Continue\r\n\r\n",
}


@pytest.mark.parametrize("data", CUT.values(), ids=CUT)
def test_an_answer_that_is_cut_short_is_a_fault(data: bytes) -> None:
    assert every_way(data, closed=True) == "fault"


FAULTS = {
    "no HTTP": b"SSH-2.0-x\r\n\r\n",
    "two lengths": OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\na",
    "a length and chunks": OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    "a list of lengths": OK + b"Content-Length: 1, 1\r\n\r\na",
    "a length with a sign": OK + b"Content-Length: +1\r\n\r\na",
    "a coding that is not known": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    "a folded header": OK + b"X: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "a status that is no number": b"HTTP/1.1 2x0 OK\r\n\r\n",
    "a bare LF": b"HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n",
    "a NUL in a value": OK + b"X: a\0b\r\n\r\n",
    "a bad chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nz\r\n",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    "bytes after the end": OK + b"Content-Length: 1\r\n\r\naHTTP/1.1 200 OK\r\n\r\n",
    "a head over the limit": OK + b"X: y\r\n" * (MAX_HEAD_BYTES // 6 + 1) + b"\r\n",
    "a head without end": OK + b"X: y\r\n" * (MAX_HEAD_BYTES // 6 + 1),
}


@pytest.mark.parametrize("data", FAULTS.values(), ids=FAULTS)
def test_what_is_no_answer_is_a_fault(data: bytes) -> None:
    step = max(1, len(data) // 200)
    assert read([data]) == "fault"
    assert read([data[at : at + step] for at in range(0, len(data), step)]) == "fault"


def test_a_reader_is_used_again() -> None:
    reader = AnswerReader(AnswerHeads())
    for body in (b"a", b"bc"):
        assert (reader.feed(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body), reader.done) == (body, True)
        reader.reset()
    assert (reader.head, reader.done) == (None, False)


def test_bytes_after_the_end_are_a_fault_when_they_come_late_too() -> None:
    for whole in (OK + b"Content-Length: 1\r\n\r\na", OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"):
        reader = AnswerReader(AnswerHeads())
        reader.feed(whole)
        assert reader.done
        with pytest.raises(AnswerError):
            reader.feed(b"x")


@pytest.mark.parametrize("first", [data for data, _, _ in GOOD.values()], ids=GOOD)
@pytest.mark.parametrize("second", [*(data for data, _, _ in GOOD.values()), *FAULTS.values()], ids=[*GOOD, *FAULTS])
def test_a_head_is_read_the_same_whatever_was_read_before(first: bytes, second: bytes) -> None:
    reader = AnswerReader(AnswerHeads())
    reader.feed(first)
    reader.reset()
    try:
        body = reader.feed(second)
    except AnswerError:
        assert read([second]) == "fault"
    else:
        assert (reader.head, body, reader.done) == read([second])


def test_a_length_beside_another_one_is_a_fault_although_the_other_was_read_before() -> None:
    heads, other = AnswerHeads(), OK + b"content-length:5\r\n"
    heads.read(other)
    with pytest.raises(AnswerError):
        heads.read(other + b"content-length: 7\r\n")


def test_what_is_remembered_of_heads_is_bounded() -> None:
    heads = AnswerHeads()
    for at in range(3 * MAX_KNOWN):
        heads.read(OK + b"X: %d\r\n" % at)
    heads.read(OK + b"X: %b\r\n" % (b"y" * 5000))
    assert 0 < len(heads._known) <= MAX_KNOWN
    assert max(map(len, heads._known)) < 5000


def test_a_stream_is_known_by_its_type() -> None:
    kinds = {b"text/event-stream; charset=utf-8": True, b"application/json": False, b"": False}
    read_as = {kind: AnswerHeads().read(OK + b"Content-Type: %b\r\n" % kind).is_stream for kind in kinds}
    assert read_as == kinds
