"""Answers out of the engine's bytes: every case whole and split at every byte."""

import pytest

from kvquota_sidecar.proxy.engine_answer import MAX_HEAD_BYTES, AnswerError, AnswerHead, AnswerReader

OK = b"HTTP/1.1 200 OK\r\n"
Seen = tuple[AnswerHead | None, bytes, bool, bool] | str


def read(parts: list[bytes], *, closed: bool = False) -> Seen:
    """Head, body, whether it is done and may be followed; or "fault"."""
    reader, body = AnswerReader(), b""
    try:
        for part in parts:
            reader.feed(part)
            body += reader.take_body()
        if closed and not reader.done:
            reader.end_of_input()
    except AnswerError:
        return "fault"
    return reader.head, body, reader.done, reader.keep_alive


def every_way(data: bytes, *, closed: bool = False) -> Seen:
    whole = read([data], closed=closed)
    assert all(read([data[:at], data[at:]], closed=closed) == whole for at in range(len(data)))
    assert read([data[at : at + 1] for at in range(len(data))], closed=closed) == whole
    return whole


GOOD: dict[str, tuple[bytes, AnswerHead, bytes, bool]] = {
    "a length": (OK + b"Content-Length: 2\r\n\r\nab", AnswerHead(200, ((b"content-length", b"2"),), 2), b"ab", True),
    "chunks": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2;x=y\r\nbc\r\n0\r\nTrailer: x\r\n\r\n",
        AnswerHead(200, ((b"transfer-encoding", b"chunked"),), None),
        b"abc",
        True,
    ),
    "no body": (b"HTTP/1.1 204 No Content\r\n\r\n", AnswerHead(204, (), 0), b"", True),
    "an empty body": (OK + b"Content-Length: 0\r\n\r\n", AnswerHead(200, ((b"content-length", b"0"),), 0), b"", True),
    "a last answer": (
        OK + b"Connection: close\r\nContent-Length: 1\r\n\r\na",
        AnswerHead(200, ((b"connection", b"close"), (b"content-length", b"1")), 1),
        b"a",
        False,
    ),
    "HTTP/1.0": (
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na",
        AnswerHead(200, ((b"content-length", b"1"),), 1),
        b"a",
        False,
    ),
    "interim answers before it": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK + b"Content-Length: 0\r\n\r\n",
        AnswerHead(200, ((b"content-length", b"0"),), 0),
        b"",
        True,
    ),
    "spaces around a value": (
        OK + b"Content-Length:   0  \r\n\r\n",
        AnswerHead(200, ((b"content-length", b"0"),), 0),
        b"",
        True,
    ),
}


@pytest.mark.parametrize(("data", "head", "body", "keeps"), GOOD.values(), ids=GOOD)
def test_an_answer_is_read_however_it_is_cut(data: bytes, head: AnswerHead, body: bytes, keeps: bool) -> None:
    assert every_way(data) == (head, body, True, keeps)


def test_a_body_that_the_end_of_the_connection_ends() -> None:
    assert every_way(OK + b"\r\nabc", closed=True) == (AnswerHead(200, (), None), b"abc", True, False)


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
    "a NUL in a value": OK + b"X: a\0b\r\n\r\n",
    "a bad chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nz\r\n",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    "bytes after the end": OK + b"Content-Length: 1\r\n\r\naHTTP/1.1 200 OK\r\n\r\n",
    "a head without end": OK + b"X: y\r\n" * (MAX_HEAD_BYTES // 6 + 1),
}


@pytest.mark.parametrize("data", FAULTS.values(), ids=FAULTS)
def test_what_is_no_answer_is_a_fault(data: bytes) -> None:
    step = max(1, len(data) // 200)
    assert read([data]) == "fault"
    assert read([data[at : at + step] for at in range(0, len(data), step)]) == "fault"


def test_a_reader_is_used_again() -> None:
    reader = AnswerReader()
    for body in (b"a", b"bc"):
        reader.feed(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert (reader.take_body(), reader.done, reader.keep_alive) == (body, True, True)
        reader.reset()
    assert (reader.head, reader.take_body(), reader.done) == (None, b"", False)


def test_a_stream_is_known_by_its_type() -> None:
    kinds = {b"text/event-stream; charset=utf-8": True, b"application/json": False}
    assert {kind: AnswerHead(200, ((b"content-type", kind),), None).is_stream() for kind in kinds} == kinds
    assert not AnswerHead(200, (), None).is_stream()
