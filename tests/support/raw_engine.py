"""An engine that answers byte by byte what a test tells it to."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from raw_client import DEADLINE_SECONDS


@dataclass(slots=True)
class EngineConnection:
    """One request that the engine got, and its connection: the test answers it."""

    head: bytes
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")[1:]
        return {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def answer(self, body: bytes, *headers: str, status: str = "200 OK", kind: str = "application/json") -> None:
        """A whole answer by its length; the connection may be used again."""
        lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers, "", ""]
        self.send("\r\n".join(lines).encode() + body)
        self.done()

    def answer_count(self, count: int) -> None:
        """Say how many tokens the text has that was sent to the tokenizer."""
        assert self.head.startswith(b"POST /tokenize "), self.head
        self.answer(json.dumps({"count": count, "max_model_len": 4096, "tokens": list(range(count))}).encode())

    def begin_stream(self) -> None:
        self.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

    def frame(self, text: str = "x", **more: Any) -> None:
        """One frame of a chat with one token in it."""
        self.chunk(frame(text, **more))

    def chunk(self, data: bytes) -> None:
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        self.chunk(b"data: [DONE]\n\n")
        self.send(b"0\r\n\r\n")
        self.done()

    def done(self) -> None:
        """This request is answered: the connection waits for the next."""
        self.answered.set()

    def cut(self) -> None:
        """Die: reset the connection."""
        self.writer.transport.abort()
        self.done()

    def finish(self) -> None:
        """Close the connection after what was sent."""
        self.writer.close()
        self.done()

    async def gone(self) -> None:
        """Wait until the sidecar has closed it."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            with suppress(ConnectionError):
                assert await self.reader.read(1) == b""
        self.done()


def frame(text: str = "x", **more: Any) -> bytes:
    """One event of a chat stream."""
    event = {"choices": [{"index": 0, "delta": {"content": text}}], **more}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


class RawEngine:
    """An engine without metrics that answers what the test tells it to, byte by byte.

    `tokenizes`: whether it has a tokenizer, which is asked and answered like everything else.
    """

    def __init__(self, *, tokenizes: bool = False) -> None:
        self.tokenizes = tokenizes
        self.requests: asyncio.Queue[EngineConnection] = asyncio.Queue()
        self.accepted = 0  # connections that carried a request
        self.address: tuple[str, int]
        self._server: asyncio.Server
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 24)
        self.address = ("127.0.0.1", self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        for writer in self._writers:
            writer.transport.abort()

    @property
    def authority(self) -> str:
        return ":".join(map(str, self.address))

    async def stop(self) -> None:
        """Listen no more."""
        self._server.close()

    async def next(self) -> EngineConnection:
        """The next request that comes."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self.requests.get()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        counted = False
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET /metrics ") or (_is_a_count(head) and not self.tokenizes):
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    writer.close()
                    return
                self.accepted += not counted
                counted = True
                request = EngineConnection(head, b"", reader, writer)
                request.body = await reader.readexactly(int(request.headers.get("content-length", "0")))
                self.requests.put_nowait(request)
                await request.answered.wait()


def _is_a_count(head: bytes) -> bool:
    """Whether the sidecar asks for itself how long a prompt is; what it passes on has an id."""
    asked = head.startswith((b"POST /tokenize ", b"POST /v1/messages/count_tokens "))
    return asked and b"\r\nx-request-id: " not in head


@asynccontextmanager
async def echoing(engine: RawEngine) -> AsyncIterator[list[EngineConnection]]:
    """Let it answer each request with what it was asked; the requests so far."""
    seen: list[EngineConnection] = []

    async def answer() -> None:
        while True:
            request = await engine.requests.get()
            seen.append(request)
            said = {"line": request.head.partition(b"\r\n")[0].decode(), "body": request.body.decode("latin-1")}
            request.answer(json.dumps(said | {"headers": request.headers}).encode())

    answering = asyncio.create_task(answer())
    try:
        yield seen
    finally:
        answering.cancel()
