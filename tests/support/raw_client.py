"""Clients that see every byte of what they get: one that talks, and one that sends what it has in pieces."""

import asyncio
import json
import socket
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import pytest

DEADLINE_SECONDS = 20.0  # for what takes milliseconds; other work on the machine may take the rest


@dataclass(frozen=True, slots=True)
class Got:
    """An answer as it came over the wire. `body` without its framing; `complete`: whether its end came."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool = True

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json()["error"]["code"])


class RawClient:
    """A client that sees every byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        reader, writer = await asyncio.open_connection(host, port, limit=1 << 22)
        return cls(reader, writer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def pause_reading(self) -> None:
        """Take nothing more off the wire, so that its buffers fill."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    @property
    def _transport(self) -> asyncio.Transport:
        """Of both directions, which the type of the writer's does not say."""
        return cast("asyncio.Transport", self.writer.transport)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def ask(self, data: bytes) -> Got:
        self.send(data)
        return await self.answer()

    async def answer(self) -> Got:
        """The next answer, as far as it comes."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            head = await self.reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"HTTP/1.1 100"):
                head = await self.reader.readuntil(b"\r\n\r\n")
            return await self._body(*_parsed_head(head))

    async def line(self, text: bytes) -> bytes:
        """Everything up to and including `text`."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self.reader.readuntil(text)

    async def eof(self) -> bytes:
        """Everything up to the end of the connection; a reset is an end too."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            rest = b""
            with suppress(ConnectionError):
                while data := await self.reader.read(1 << 16):
                    rest += data
            return rest

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    def reset(self) -> None:
        self.writer.transport.abort()

    async def _body(self, status: int, headers: dict[str, str]) -> Got:
        if "content-length" in headers:
            try:
                return Got(status, headers, await self.reader.readexactly(int(headers["content-length"])))
            except asyncio.IncompleteReadError as error:
                return Got(status, headers, error.partial, complete=False)
        if headers.get("transfer-encoding") == "chunked":
            return await self._chunks(Got(status, headers, b""))
        return Got(status, headers, await self.eof())

    async def _chunks(self, got: Got) -> Got:
        try:
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                got = replace(got, body=got.body + (await self.reader.readexactly(size + 2))[:-2])
            assert await self.reader.readexactly(2) == b"\r\n"
        except (asyncio.IncompleteReadError, ConnectionError):
            return replace(got, complete=False)
        return got


def _by_fin(client: RawClient) -> None:
    client.writer.close()


def _by_reset(client: RawClient) -> None:
    raw = client.writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.reset()


LEAVING = {"by FIN": _by_fin, "by RST": _by_reset}
"""How a client may leave."""


def _parsed_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    return int(first.split(" ")[1]), {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}


# Replays.

WHOLE_BYTES = 500  # at the beginning and the end of what is replayed, every byte is a place to cut
STRIDE = 211  # between them; a prime, so that it falls into step with nothing


class Reads(Counter[int]):
    """How many bytes the sidecar has read on each of its connections, by the port of the end that began it."""

    def watch(self, connection: type, beginner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count what a protocol reads, whose `_transport` is its transport; `beginner` is "peername" or "sockname"."""
        read = vars(connection)["data_received"]

        def data_received(protocol: Any, data: bytes) -> None:
            self[protocol._transport.get_extra_info(beginner)[1]] += len(data)
            read(protocol, data)

        monkeypatch.setattr(connection, "data_received", data_received)

    async def reach(self, port: int, size: int, ended: Callable[[], bool]) -> None:
        """Wait until so many bytes of that port have been read, or nothing will be any more."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while self[port] < size and not ended():  # noqa: ASYNC110 - a count is no event
                await asyncio.sleep(0)


class Replays:
    """Clients that send the same bytes in two reads, cut at every byte in turn, and byte by byte.

    What follows a cut is sent when what is before it has been read, so the cuts are those of the reads.
    """

    def __init__(self, host: str, port: int, reads: Reads) -> None:
        self.host, self.port, self.reads = host, port, reads

    async def every_way(self, data: bytes, together: int = 48) -> list[bytes]:
        """All that is sent back up to the end of the connection, for `data` whole, in two reads, and byte by byte."""
        ways = every_cut(data)
        seen: list[bytes] = []
        for at in range(0, len(ways), together):
            seen += await asyncio.gather(*(self._said(parts) for parts in ways[at : at + together]))
        return seen

    async def _said(self, parts: Sequence[bytes]) -> bytes:
        async with await RawClient.open(self.host, self.port) as client:
            port = client.writer.get_extra_info("sockname")[1]
            rest = asyncio.ensure_future(client.eof())
            self.reads[port] = sent = 0
            for part in parts:
                client.send(part)
                sent += len(part)
                await self.reads.reach(port, sent, rest.done)
            return await rest


def every_cut(data: bytes) -> list[list[bytes]]:
    """These bytes whole, in two parts cut at every byte in turn (where they are many, in the middle of them not at
    every one), and byte by byte where they are few."""
    size = len(data)
    places = [at for at in range(1, size) if at < WHOLE_BYTES or at > size - WHOLE_BYTES or at % STRIDE == 0]
    ways = [[data], *([data[:at], data[at:]] for at in places)]
    return [*ways, [data[at : at + 1] for at in range(size)]] if size <= 2 * WHOLE_BYTES else ways
