"""The chunked framing of request bodies: every case whole and split at every byte."""

import pytest

from kvquota_sidecar.proxy.chunked import MAX_CHUNKS, MAX_LINE_BYTES, Chunks

LIMIT = 32


def read(parts: list[bytes]) -> tuple[bytes, bytes] | int | None:
    """Body and rest, the status of a fault, or None where it is not complete."""
    chunks, body = Chunks(LIMIT, MAX_CHUNKS), b""
    for part in parts:
        if not chunks.done:
            body += chunks.feed(part)
        else:
            chunks.rest += part
        if chunks.fault is not None:
            return chunks.fault.status
    return (body, chunks.rest) if chunks.done else None


def every_way(data: bytes) -> tuple[bytes, bytes] | int | None:
    whole = read([data])
    assert all(read([data[:at], data[at:]]) == whole for at in range(len(data)))
    assert read([data[at : at + 1] for at in range(len(data))]) == whole
    return whole


CASES: dict[str, tuple[bytes, tuple[bytes, bytes] | int | None]] = {
    "two chunks": (b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", (b"abcde", b"")),
    "an empty body": (b"0\r\n\r\n", (b"", b"")),
    "what follows is left alone": (b"1\r\na\r\n0\r\n\r\nGET /", (b"a", b"GET /")),
    "a size in both cases of hexadecimal": (b"0A\r\n0123456789\r\nb\r\n", None),
    "data that looks like framing": (b"6\r\n0\r\n\r\nX\r\n0\r\n\r\n", (b"0\r\n\r\nX", b"")),
    "an extension": (b'1;name="a b"\r\na\r\n0;x\r\n\r\n', (b"a", b"")),
    "white space after a size": (b"1 \r\na\r\n0\r\n\r\n", 400),
    "white space before an extension": (b"1 ;x=y\r\na\r\n0\r\n\r\n", (b"a", b"")),
    "trailers": (b"1\r\na\r\n0\r\nX: y\r\nZ: w\r\n\r\n", (b"a", b"")),
    "not complete": (b"3\r\nab", None),
    "a size with a sign": (b"+3\r\nabc\r\n0\r\n\r\n", 400),
    "a size with a prefix": (b"0x3\r\nabc\r\n0\r\n\r\n", 400),
    "an empty size": (b"\r\nabc\r\n0\r\n\r\n", 400),
    "white space before a size": (b" 3\r\nabc\r\n0\r\n\r\n", 400),
    "a size beyond any number": (b"fffffffffffffffff\r\n", 400),
    "a bare LF after a size": (b"3\nabc\r\n0\r\n\r\n", 400),
    "a bare LF in an extension": (b"3;a\nb\r\nabc\r\n0\r\n\r\n", 400),
    "a bare CR in an extension": (b"3;a\rb\r\nabc\r\n0\r\n\r\n", 400),
    "a control character in an extension": (b"3;\x01\r\nabc\r\n0\r\n\r\n", 400),
    "data longer than its size": (b"3\r\nabcd\r\n0\r\n\r\n", 400),
    "a bare LF after the data": (b"3\r\nabc\n0\r\n\r\n", 400),
    "a bad trailer": (b"0\r\nX y\r\n\r\n", 400),
    "a folded trailer": (b"0\r\nX: y\r\n z\r\n\r\n", 400),
    "a chunk over the limit": (b"21\r\n", 413),
    "chunks that are over the limit together": (b"20\r\n" + b"x" * 32 + b"\r\n1\r\n", 413),
    "chunks that are at the limit together": (b"1f\r\n" + b"x" * 31 + b"\r\n1\r\nx\r\n0\r\n\r\n", (b"x" * 32, b"")),
}


@pytest.mark.parametrize(("data", "expected"), CASES.values(), ids=CASES)
def test_chunks_are_read_the_same_however_they_are_cut(data: bytes, expected: tuple[bytes, bytes] | int | None) -> None:
    assert every_way(data) == expected


def test_a_line_that_never_ends_is_refused() -> None:
    assert read([b"1;" + b"x" * MAX_LINE_BYTES]) == 400
    assert read([b"1;" + b"x" * MAX_LINE_BYTES + b"\r\n"]) == 400


def test_trailers_without_end_are_refused() -> None:
    assert read([b"0\r\n", *[b"X: y\r\n"] * (MAX_LINE_BYTES // 6 + 1)]) == 400


def test_a_body_in_too_many_chunks_is_refused() -> None:
    chunks = Chunks(1 << 20, MAX_CHUNKS)
    assert chunks.feed(b"1\r\nx\r\n" * MAX_CHUNKS) == b"x" * MAX_CHUNKS
    assert chunks.fault is None
    chunks.feed(b"1\r\nx\r\n")
    assert chunks.fault is not None
    assert chunks.fault.status == 413


def test_a_chunk_that_comes_by_itself_is_measured_too() -> None:
    chunks = Chunks(3, 2)
    assert [chunks.feed(b"1\r\na\r\n"), chunks.feed(b"2\r\nbc\r\n"), chunks.fault] == [b"a", b"bc", None]
    assert chunks.feed(b"1\r\nd\r\n") == b""
    assert chunks.fault is not None


@pytest.mark.parametrize("size", [1, 15, 16, 255, 256, 257, 4095, 4096, 70_000])
def test_a_chunk_of_any_size_that_comes_by_itself_is_read_like_one_that_is_cut(size: int) -> None:
    data = b"%x\r\n" % size + b"y" * size + b"\r\n"
    whole, cut = Chunks(), Chunks()
    assert whole.feed(data) == b"y" * size
    assert cut.feed(data[:3]) + cut.feed(data[3:-1]) + cut.feed(data[-1:]) == b"y" * size
    for chunks in (whole, cut):
        assert (chunks.feed(b"0\r\n\r\n"), chunks.done, chunks.fault) == (b"", True, None)


def test_a_chunk_that_comes_by_itself_and_is_too_much_is_refused() -> None:
    chunk = b"10\r\n" + b"y" * 16 + b"\r\n"
    for chunks in (Chunks(max_bytes=31), Chunks(max_chunks=1)):
        assert [chunks.feed(chunk), chunks.fault, chunks.feed(chunk)] == [b"y" * 16, None, b""]
        assert chunks.fault is not None
        assert chunks.fault.status == 413


def test_what_only_looks_like_a_whole_chunk_is_none() -> None:
    said = {
        data: Chunks() for data in (b"010\r\n" + b"y" * 16 + b"\r\n", b"10\r\n" + b"y" * 16 + b"\n\n", b"-1\r\n\r\n")
    }
    read = {data: (chunks.feed(data), chunks.fault is None) for data, chunks in said.items()}
    assert list(read.values()) == [(b"y" * 16, True), (b"y" * 16, False), (b"", False)]
