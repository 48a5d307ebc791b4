"""What is a request's head, and what is not: every case whole and split at every byte."""

from collections.abc import Iterator

import pytest

from kvquota_sidecar.proxy.head import Fault, Head, read_head
from kvquota_sidecar.proxy.reading import MAX_HEAD_BYTES, MAX_HEADERS, Event, Request, RequestReader

LIMIT = 64  # bytes of a body
LINE = b"POST /v1/completions HTTP/1.1\r\n"
HOST = b"Host: a\r\n"


def events(reader: RequestReader) -> Iterator[Event]:
    while (event := reader.next_event()) is not None:
        yield event
        if isinstance(event, Fault):
            return


def replay(data: bytes, *, split: int) -> list[Event]:
    """The events of `data` when it comes in two reads."""
    reader = RequestReader(LIMIT)
    seen: list[Event] = []
    for part in (data[:split], data[split:]):
        reader.feed(part)
        if not any(isinstance(event, Fault) for event in seen):
            seen += events(reader)
    return seen


def drip(data: bytes) -> list[Event]:
    """The events of `data` when every byte is a read of its own."""
    reader = RequestReader(LIMIT)
    seen: list[Event] = []
    for at in range(len(data)):
        reader.feed(data[at : at + 1])
        seen += events(reader)
        if seen and isinstance(seen[-1], Fault):
            break
    return seen


def every_way(data: bytes) -> list[Event]:
    """The events of `data`, the same whichever way it is cut."""
    whole = replay(data, split=len(data))
    assert all(replay(data, split=at) == whole for at in range(len(data)))
    assert drip(data) == whole
    return whole


def statuses(seen: list[Event]) -> list[int | str]:
    return [event.status if isinstance(event, Fault) else type(event).__name__ for event in seen]


REFUSED = {
    "a length and a transfer coding": (
        LINE + HOST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
        400,
    ),
    "a transfer coding and a length": (
        LINE + HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
        400,
    ),
    "two different lengths": (LINE + HOST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
    "two equal lengths": (LINE + HOST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
    "a list of lengths": (LINE + HOST + b"Content-Length: 3, 3\r\n\r\nabc", 400),
    "a length with a plus": (LINE + HOST + b"Content-Length: +3\r\n\r\nabc", 400),
    "a length below zero": (LINE + HOST + b"Content-Length: -1\r\n\r\n", 400),
    "an empty length": (LINE + HOST + b"Content-Length: \r\n\r\n", 400),
    "a length in hexadecimal": (LINE + HOST + b"Content-Length: 0x3\r\n\r\nabc", 400),
    "a length beyond any number": (LINE + HOST + b"Content-Length: 9999999999999999999\r\n\r\n", 400),
    "a length with digits that are not ASCII": (LINE + HOST + b"Content-Length: \xb2\r\n\r\n", 400),
    "two transfer codings": (LINE + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 400),
    "a transfer coding twice": (LINE + HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "an unknown transfer coding": (LINE + HOST + b"Transfer-Encoding: xchunked\r\n\r\n", 400),
    "a transfer coding in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "a bare LF after the request line": (b"GET / HTTP/1.1\nHost: a\r\n\r\n", 400),
    "a bare LF in a header": (LINE + b"Host: a\nX: b\r\n\r\n", 400),
    "only bare LFs": (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    "a bare CR in a value": (LINE + b"Host: a\r\nX: b\rc\r\n\r\n", 400),
    "a NUL in a value": (LINE + HOST + b"X: a\0b\r\n\r\n", 400),
    "a control character in a value": (LINE + HOST + b"X: a\x01b\r\n\r\n", 400),
    "a DEL in a value": (LINE + HOST + b"X: a\x7fb\r\n\r\n", 400),
    "a folded header": (LINE + HOST + b"X: a\r\n b\r\n\r\n", 400),
    "a header that starts with a tab": (LINE + b"\tX: a\r\n" + HOST + b"\r\n", 400),
    "a space before a colon": (LINE + HOST + b"Content-Length : 3\r\n\r\nabc", 400),
    "a tab before a colon": (LINE + HOST + b"X\t: 3\r\n\r\n", 400),
    "a header without a colon": (LINE + HOST + b"nonsense\r\n\r\n", 400),
    "a header without a name": (LINE + HOST + b": x\r\n\r\n", 400),
    "a header name that is not ASCII": (LINE + HOST + b"X-\xc3\xa4: x\r\n\r\n", 400),
    "no host": (LINE + b"X: y\r\n\r\n", 400),
    "two hosts": (LINE + HOST + HOST + b"\r\n", 400),
    "a host with a path in it": (LINE + b"Host: a/b\r\n\r\n", 400),
    "a host with a user in it": (LINE + b"Host: u@a\r\n\r\n", 400),
    "a target with a scheme": (b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "a target of two slashes": (b"GET //b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "a target with a backslash": (b"GET /\\b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "a backslash further on": (b"GET /a\\b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "a fragment": (b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "CONNECT": (b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "OPTIONS of everything": (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "two spaces in the request line": (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "a tab in the request line": (b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "a target that is not ASCII": (b"GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "no version": (b"GET /\r\nHost: a\r\n\r\n", 400),
    "version 2": (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 400),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "a lower case version": (b"GET / http/1.1\r\nHost: a\r\n\r\n", 400),
    "a TLS handshake": (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
    "another expectation": (LINE + HOST + b"Expect: 200-ok\r\n\r\n", 417),
    "a compressed body": (LINE + HOST + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 415),
    "a body compressed twice": (LINE + HOST + b"Content-Encoding: identity\r\nContent-Encoding: br\r\n\r\n", 415),
    "a body over the limit": (LINE + HOST + b"Content-Length: 65\r\n\r\n" + b"x" * 65, 413),
}


@pytest.mark.parametrize(("data", "status"), REFUSED.values(), ids=REFUSED)
def test_a_request_that_two_readers_could_read_differently_is_refused(data: bytes, status: int) -> None:
    assert statuses(every_way(data)) == [status]


TAKEN = {
    "no body": (b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", b""),
    "a body": (LINE + HOST + b"Content-Length: 3\r\n\r\nabc", b"abc"),
    "a body at the limit": (LINE + HOST + b"Content-Length: 64\r\n\r\n" + b"x" * 64, b"x" * 64),
    "an empty body": (LINE + HOST + b"Content-Length: 0\r\n\r\n", b""),
    "empty lines before it": (b"\r\n\r\n" + LINE + HOST + b"\r\n", b""),
    "HTTP/1.0 without a host": (b"POST /v1/completions HTTP/1.0\r\nContent-Length: 2\r\n\r\nok", b"ok"),
    "an expectation": (LINE + HOST + b"Expect: 100-Continue\r\nContent-Length: 2\r\n\r\nok", b"ok"),
    "an upgrade that is asked for": (LINE + HOST + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n", b""),
    "values with odd bytes": (LINE + HOST + b"X: \xe4\t\xf6 ~ \r\n\r\n", b""),
    "an empty value": (LINE + HOST + b"X:\r\n\r\n", b""),
    "chunks": (LINE + HOST + b"Transfer-Encoding: Chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", b"abc"),
}


@pytest.mark.parametrize(("data", "body"), TAKEN.values(), ids=TAKEN)
def test_a_good_request_is_read_however_it_is_cut(data: bytes, body: bytes) -> None:
    head, request = every_way(data)
    assert isinstance(head, Head)
    assert request == Request(head, body)


def test_a_head_says_all_that_later_steps_need() -> None:
    data = (
        b"POST /a?b=c HTTP/1.1\r\nHOST: x:80\r\nConnection: Close, X-Mine\r\n"
        b"Expect: 100-continue\r\nContent-Length: 7\r\n"
    )
    assert read_head(data) == Head(
        method="POST",
        target="/a?b=c",
        path="/a",
        minor=1,
        headers=(
            (b"host", b"x:80"),
            (b"connection", b"Close, X-Mine"),
            (b"expect", b"100-continue"),
        ),
        length=7,
        keep_alive=False,
        expects_continue=True,
    )


AGAIN = {
    "the same head": (LINE + HOST + b"Content-Length: 1\r\n\r\n1", b"1"),
    "another length": (LINE + HOST + b"Content-Length: 2\r\n\r\n22", b"22"),
    "the length in another place": (LINE + b"Content-Length: 2\r\n" + HOST + b"\r\n22", b"22"),
    "the length in other letters": (LINE + HOST + b"CONTENT-LENGTH:2\r\n\r\n22", b"22"),
    "another header": (LINE + HOST + b"X: y\r\nContent-Length: 1\r\n\r\n1", b"1"),
    "chunks": (LINE + HOST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n\r\n", b"1"),
    "no body": (LINE + HOST + b"\r\n", b""),
}
FIRST = LINE + HOST + b"Content-Length: 1\r\n\r\n1"


@pytest.mark.parametrize(("data", "body"), AGAIN.values(), ids=AGAIN)
def test_a_head_is_read_the_same_after_one_that_is_like_it(data: bytes, body: bytes) -> None:
    alone, after = every_way(data), every_way(FIRST + data)[2:]
    assert after == alone
    assert isinstance(after[1], Request)
    assert after[1].body == body


@pytest.mark.parametrize(("data", "status"), REFUSED.values(), ids=REFUSED)
def test_a_head_is_refused_the_same_after_one_that_is_like_it(data: bytes, status: int) -> None:
    assert statuses(every_way(FIRST + data))[2:] == [status]


def test_heads_that_differ_in_their_length_share_what_was_found_out_about_them() -> None:
    heads = [event for event in every_way(FIRST * 2 + AGAIN["another length"][0]) if isinstance(event, Head)]
    heads[0].notes["who"] = "a"
    assert [head.notes for head in heads] == [{"who": "a"}] * 3
    other = next(iter(every_way(AGAIN["another header"][0])))
    assert isinstance(other, Head)
    assert other.notes == {}


def test_requests_that_come_together_are_read_one_after_the_other() -> None:
    first = LINE + HOST + b"Content-Length: 1\r\n\r\n1"
    second = LINE + HOST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n2\r\n0\r\n\r\n"
    seen = every_way(first + second + first)
    assert [event.body for event in seen if isinstance(event, Request)] == [b"1", b"2", b"1"]


def test_nothing_is_read_of_the_next_request_before_it_is_asked_for() -> None:
    reader = RequestReader(LIMIT)
    reader.feed(LINE + HOST + b"\r\nGET nonsense\r\n\r\n")
    assert isinstance(reader.next_event(), Head)
    assert reader.stage == "ready"
    assert isinstance(reader.next_event(), Request)
    assert (reader.stage, reader.unread) == ("head", 16)
    assert isinstance(reader.next_event(), Fault)


def test_a_fault_is_the_last_event() -> None:
    reader = RequestReader(LIMIT)
    reader.feed(b"nonsense\r\n\r\n" + LINE + HOST + b"\r\n")
    assert reader.next_event() == reader.next_event() != None  # noqa: E711 - the same fault twice
    assert reader.stage == "failed"
    reader.feed(LINE + HOST + b"\r\n")
    assert isinstance(reader.next_event(), Fault)


def big_head(lines: int, size: int) -> bytes:
    return LINE + HOST + b"".join(b"X-%d: %b\r\n" % (at, b"y" * size) for at in range(lines))


OVER = {
    "one header of 100 kB": big_head(1, 100_000) + b"\r\n",
    "2,000 headers": big_head(2_000, 1) + b"\r\n",
    "a request line that never ends": b"GET /" + b"a" * (MAX_HEAD_BYTES + 1),
}


@pytest.mark.parametrize("data", OVER.values(), ids=OVER)
@pytest.mark.parametrize("step", [1 << 20, 4096, 7])
def test_a_head_over_the_limit_is_refused_at_the_limit(data: bytes, step: int) -> None:
    reader = RequestReader(LIMIT)
    for at in range(0, len(data), step):
        reader.feed(data[at : at + step])
        event = reader.next_event()
        if event is not None:
            break
    assert isinstance(event, Fault)
    assert event.status == 431
    assert at <= MAX_HEAD_BYTES + step


def test_a_head_at_the_limit_is_taken() -> None:
    reader = RequestReader(LIMIT)
    reader.feed(big_head(MAX_HEADERS - 2, 100) + b"\r\n")
    assert isinstance(reader.next_event(), Head)


def test_sentences_name_what_is_wrong() -> None:
    said = {
        name: seen[0].sentence
        for name, (data, _) in REFUSED.items()
        if isinstance((seen := replay(data, split=0))[0], Fault)
    }
    assert said["a folded header"] == "A header is folded over two lines: send it on one line."
    assert said["a space before a colon"] == "There is white space before a header's colon: remove it."
    assert said["a control character in a value"] == "A header's value has a control character in it: remove it."
    assert said["a header without a colon"] == "A header line is not of the form: Name: value."
    assert said["version 2"] == "The request line is not of the form: METHOD /path HTTP/1.1."
    assert said["a body over the limit"] == "The request body is over the limit of 64 bytes: send a smaller one."


PATHS = {
    "the body's coding": (LINE + HOST + b"Content-Encoding: gzip\r\n\r\n", "/v1/completions"),
    "another expectation": (b"POST /v1/messages?x=y HTTP/1.1\r\nHost: a\r\nExpect: x\r\n\r\n", "/v1/messages"),
    "a body over the limit": (LINE + HOST + b"Content-Length: 65\r\n\r\n", "/v1/completions"),
    "two hosts": (LINE + HOST + HOST + b"\r\n", "/v1/completions"),
    "a bare LF": (LINE + b"Host: a\nX: b\r\n\r\n", "/v1/completions"),
    "a head over the limit": (big_head(2000, 1) + b"\r\n", "/v1/completions"),
    "a line that cannot be read": (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", ""),
    "a target that is no path": (b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", ""),
}


@pytest.mark.parametrize(("data", "path"), PATHS.values(), ids=PATHS)
def test_a_fault_says_what_was_asked_for_as_far_as_it_could_be_read(data: bytes, path: str) -> None:
    (fault,) = replay(data, split=len(LINE) + 3)
    assert isinstance(fault, Fault)
    assert fault.path == path


def test_a_request_that_has_not_come_whole_says_what_it_asks_for() -> None:
    reader, seen = RequestReader(LIMIT), []
    for part in (b"", LINE[:-4], LINE[-4:], HOST + b"Content-Length: 3\r\n\r\n", b"a"):
        reader.feed(part)
        reader.next_event()
        seen.append(reader.path)
    assert seen == ["", "", "/v1/completions", "/v1/completions", "/v1/completions"]
