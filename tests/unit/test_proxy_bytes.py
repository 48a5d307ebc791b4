"""What goes out to the engine and to clients, as bytes."""

import pytest

from kvquota_sidecar.proxy.answers import (
    Answer,
    Framing,
    UnsafeHeaderError,
    encode_answer,
    encode_fields,
    encode_head,
    http_date,
    passed_on,
    with_date,
)
from kvquota_sidecar.proxy.chunked import chunk
from kvquota_sidecar.proxy.forwarding import engine_request
from kvquota_sidecar.proxy.head import Head, read_head

DATE = b"date: today\r\n"
AUTHORITY = b"127.0.0.1:18000"


def head(*headers: str, line: str = "POST /v1/completions?x=y HTTP/1.1") -> Head:
    found = read_head("\r\n".join([line, "Host: public.example", *headers, ""]).encode("latin-1"))
    assert isinstance(found, Head)
    return found


def forwarded(request: Head, body: bytes = b"", withheld: frozenset[bytes] = frozenset()) -> list[str]:
    data = engine_request(request, body, AUTHORITY, "id-1", withheld)
    lines, _, rest = data.partition(b"\r\n\r\n")
    assert rest == body
    return lines.decode("latin-1").split("\r\n")


def test_a_request_to_the_engine_is_addressed_and_framed_by_this_program() -> None:
    assert forwarded(head("Transfer-Encoding: chunked", "X-Mine: a  b"), b"abc") == [
        "POST /v1/completions HTTP/1.1",
        "host: 127.0.0.1:18000",
        "x-mine: a  b",
        "x-request-id: id-1",
        "content-length: 3",
    ]
    assert "content-length: 0" in forwarded(head())
    assert not [line for line in forwarded(head(line="GET /v1/models HTTP/1.1")) if "content-length" in line]


LINES = {
    "a query of a route that generates is dropped": (
        "POST /v1/completions?x=y HTTP/1.1",
        "POST /v1/completions HTTP/1.1",
    ),
    "a query of a route that reads is kept": ("GET /v1/models?x=y HTTP/1.1", "GET /v1/models?x=y HTTP/1.1"),
    "HEAD is asked as GET, and its body kept back": ("HEAD /health HTTP/1.1", "GET /health HTTP/1.1"),
}


@pytest.mark.parametrize(("line", "expected"), LINES.values(), ids=LINES)
def test_the_request_line_of_the_engine(line: str, expected: str) -> None:
    assert forwarded(head(line=line))[0] == expected


LEFT_OUT = [
    *("Connection: x-one, close", "Keep-Alive: 5", "Proxy-Connection: x", "Proxy-Authorization: x", "TE: trailers"),
    *("Trailer: x", "Upgrade: h2c", "HTTP2-Settings: x", "X-One: nominated", "Expect: 100-continue"),
    *("Accept-Encoding: gzip", "Content-Encoding: identity", "X-Vllm-Priority: 0", "x_vllm_priority: 0"),
    *("X-Session-ID: s", "X-data-parallel-rank: 1", "X-Data_Parallel-Rank: 1", "X-Request-Id: chosen"),
    *("X-Kvquota-Tenant: a", "X_Kvquota_Anything: a", "X-Tenant-Id: a", "Tenant: a", "X_TENANT: a"),
]


@pytest.mark.parametrize("header", LEFT_OUT)
def test_what_steers_the_hop_or_the_engine_is_left_out(header: str) -> None:
    sent = forwarded(head("Connection: x-one, close", header) if header != LEFT_OUT[0] else head(header))
    assert sent == [
        "POST /v1/completions HTTP/1.1",
        "host: 127.0.0.1:18000",
        "x-request-id: id-1",
        "content-length: 0",
    ]


def test_credentials_are_passed_or_withheld_as_the_config_says() -> None:
    request = head("Authorization: Bearer k")
    assert "authorization: Bearer k" in forwarded(request)
    assert "authorization: Bearer k" not in forwarded(request, withheld=frozenset({b"authorization"}))


def test_what_the_engine_says_of_its_own_hop_or_in_our_name_is_not_passed_on() -> None:
    kept = ((b"content-type", b"text/plain"), (b"x-mine", b"1"))
    dropped = (
        *((b"connection", b"x-hop"), (b"x-hop", b"1"), (b"transfer-encoding", b"chunked"), (b"content-length", b"3")),
        (b"x-request-id", b"id-1"),
        *((b"keep-alive", b"5"), (b"ratelimit", b"x"), (b"ratelimit-policy", b"x"), (b"x-kvquota-rung", b"x")),
    )
    assert passed_on(dropped + kept) == kept
    assert passed_on((*kept, (b"date", b"now"))) == ((b"date", b"now"), *kept)


def test_a_date_is_added_where_there_is_none() -> None:
    ours = http_date(784111777)
    assert ours == b"date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
    assert with_date(b"date: theirs\r\n", ours) == b"date: theirs\r\n"
    assert with_date(b"x: y\r\n", ours) == ours + b"x: y\r\n"


FRAMINGS: dict[Framing, bytes] = {
    "Length": b"HTTP/1.1 200 OK\r\nx: y\r\ncontent-length: 3\r\n\r\n",
    "Chunked": b"HTTP/1.1 200 OK\r\nx: y\r\ntransfer-encoding: chunked\r\n\r\n",
    "Close": b"HTTP/1.1 200 OK\r\nx: y\r\nconnection: close\r\n\r\n",
}


@pytest.mark.parametrize(("framing", "expected"), FRAMINGS.items())
def test_an_answer_is_framed_in_one_way(framing: Framing, expected: bytes) -> None:
    assert encode_head(200, encode_fields(((b"x", b"y"),)), 3, framing, close=framing == "Close") == expected


def test_a_whole_answer() -> None:
    answer = Answer(429, b"{}", encode_fields(((b"retry-after", b"1"),)))
    assert encode_answer(answer, DATE, close=False) == (
        b"HTTP/1.1 429 Too Many Requests\r\ndate: today\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
        b"content-length: 2\r\n\r\n{}"
    )
    assert encode_head(599, b"", 0, "Length", close=True).startswith(b"HTTP/1.1 599 \r\n")


@pytest.mark.parametrize("value", [b"a\r\nSet-Cookie: b", b"a\nb", b"a\rb", b"a\0b"])
def test_a_header_with_a_control_character_is_never_written(value: bytes) -> None:
    with pytest.raises(UnsafeHeaderError):
        encode_fields(((b"x", value),))


def test_an_answer_to_head_says_how_long_the_body_would_be_and_has_none() -> None:
    answer = Answer(200, b"{}")
    whole = encode_answer(answer, DATE, close=False)
    assert encode_answer(answer, DATE, close=False, bodiless=True) == whole.removesuffix(b"{}")


@pytest.mark.parametrize("size", [1, 26, 255, 256, 1023, 1024, 70_000])
def test_a_chunk(size: int) -> None:
    assert chunk(b"x" * size) == b"%x\r\n%b\r\n" % (size, b"x" * size)
