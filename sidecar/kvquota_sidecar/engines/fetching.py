"""One small GET from the engine, read whole."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass
from typing import Final

from kvquota_sidecar.proxy.engine_answer import AnswerHead
from kvquota_sidecar.proxy.engine_side import EngineFailure, EnginePool
from kvquota_sidecar.proxy.head import Headers

_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32  # zlib's own number for: look at the first bytes


class EngineUnavailableError(Exception):
    """The engine did not answer; the text says how."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """`headers` with names in lower case; `body` as it was before the engine compressed it."""

    status: int
    body: bytes
    headers: Headers = ()

    def header(self, name: bytes) -> bytes:
        """The value of a header, empty where there is none."""
        return next((value for each, value in self.headers if each == name), b"")


async def fetch(pool: EnginePool, path: str, *, max_bytes: int, seconds: float) -> Fetched:
    """The answer to GET `path`. Raises EngineUnavailableError: no answer within `seconds`, or one over `max_bytes`."""
    gathering = _Gathering(asyncio.get_running_loop().create_future(), max_bytes)
    head = b"GET %b HTTP/1.1\r\nhost: %b\r\naccept: */*\r\naccept-encoding: identity\r\n\r\n"
    call = pool.call(head % (path.encode(), pool.address.authority), gathering)
    try:
        async with asyncio.timeout(seconds):
            return _unpacked(await gathering.result, max_bytes)
    except TimeoutError as error:
        raise EngineUnavailableError(f"{path}: no answer within {seconds:g} s") from error
    finally:
        if not gathering.complete:
            call.cancel()


def _unpacked(fetched: Fetched, max_bytes: int) -> Fetched:
    """A server that compresses whether it was asked to or not is understood where it uses gzip or deflate."""
    coding = fetched.header(b"content-encoding").lower()
    if coding in (b"", b"identity"):
        return fetched
    if coding not in (b"gzip", b"x-gzip", b"deflate"):
        raise EngineUnavailableError(f"the answer is compressed as {coding.decode('latin-1')}")
    reader = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        body = reader.decompress(fetched.body, max_bytes)
    except zlib.error as error:
        raise EngineUnavailableError(f"the answer is no {coding.decode()}: {error}") from error
    if not reader.eof:
        raise EngineUnavailableError(f"the answer is cut short, or over {max_bytes} bytes when it is unpacked")
    return Fetched(fetched.status, body, fetched.headers)


class _Gathering:
    """A Listener that keeps the whole answer."""

    def __init__(self, result: asyncio.Future[Fetched], max_bytes: int) -> None:
        self.result = result
        self.complete = False
        self._max_bytes = max_bytes
        self._head = AnswerHead(0, (), None)
        self._body = bytearray()

    def answer_head(self, head: AnswerHead) -> None:
        self._head = head

    def answer_data(self, data: bytes) -> None:
        if self.result.done():
            return
        self._body += data
        if len(self._body) > self._max_bytes:
            self._body.clear()
            self._fail(f"the answer is over {self._max_bytes} bytes")

    def answer_end(self) -> None:
        self.complete = True
        if not self.result.done():
            self.result.set_result(Fetched(self._head.status, bytes(self._body), self._head.headers))

    def answer_broken(self, failure: EngineFailure) -> None:
        self.complete = True
        self._fail(failure.detail)

    def _fail(self, detail: str) -> None:
        if not self.result.done():
            self.result.set_exception(EngineUnavailableError(detail))
