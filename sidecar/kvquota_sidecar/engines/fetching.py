"""One small GET from the engine, read whole."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kvquota_sidecar.proxy.engine_answer import AnswerHead
from kvquota_sidecar.proxy.engine_side import EngineFailure, EnginePool


class EngineUnavailableError(Exception):
    """The engine did not answer; the text says how."""


@dataclass(frozen=True, slots=True)
class Fetched:
    status: int
    body: bytes


async def fetch(pool: EnginePool, path: str, *, max_bytes: int, seconds: float) -> Fetched:
    """The answer to GET `path`. Raises EngineUnavailableError: no answer within `seconds`, or one over `max_bytes`."""
    gathering = _Gathering(asyncio.get_running_loop().create_future(), max_bytes)
    request = b"GET %b HTTP/1.1\r\nhost: %b\r\naccept: */*\r\n\r\n" % (path.encode(), pool.address.authority)
    call = pool.call(request, gathering)
    try:
        async with asyncio.timeout(seconds):
            return await gathering.result
    except TimeoutError as error:
        raise EngineUnavailableError(f"{path}: no answer within {seconds:g} s") from error
    finally:
        if not gathering.complete:
            call.cancel()


class _Gathering:
    """A Listener that keeps the whole answer."""

    def __init__(self, result: asyncio.Future[Fetched], max_bytes: int) -> None:
        self.result = result
        self.complete = False
        self._max_bytes = max_bytes
        self._status = 0
        self._body = bytearray()

    def answer_head(self, head: AnswerHead) -> None:
        self._status = head.status

    def answer_data(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > self._max_bytes:
            self._fail(f"the answer is over {self._max_bytes} bytes")

    def answer_end(self) -> None:
        self.complete = True
        if not self.result.done():
            self.result.set_result(Fetched(self._status, bytes(self._body)))

    def answer_broken(self, failure: EngineFailure) -> None:
        self.complete = True
        self._fail(failure.detail)

    def _fail(self, detail: str) -> None:
        if not self.result.done():
            self.result.set_exception(EngineUnavailableError(detail))
