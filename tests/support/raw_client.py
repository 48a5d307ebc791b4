"""A client that sees every byte of what it gets."""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self, cast

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


def _parsed_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    return int(first.split(" ")[1]), {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
