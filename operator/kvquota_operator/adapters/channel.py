"""The channel to the sidecars: one HTTP request and its answer, on connections that are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from kvquota_api import usage
from kvquota_api.pod_config import DocumentError
from kvquota_api.usage import SYNC_PATH, SyncRequest, UsageReport
from kvquota_operator.adapters.pod_connection import READ_BYTES, Answer, LostError, MalformedError, PodConnection
from kvquota_operator.ports import (
    BadAnswerError,
    NotLeadingError,
    PodTimeoutError,
    PodUnreachableError,
    TokenRefusedError,
)
from kvquota_operator.reading.reports import read_report
from kvquota_operator.reconcile.observed import PodSeen

TIMEOUT_SECONDS: Final = 2.0  # a sidecar answers from memory, in milliseconds; a pass waits for the slowest pod
CONNECT_SECONDS: Final = 1.0  # within a cluster; beyond it the node or the pod is gone
KEEP_SECONDS: Final = 70.0  # above the longest period of syncs, below the 75 s after which a sidecar closes an idle one
LARGEST_REPORT_BYTES: Final = 8 * 2**20  # 10,000 tenants at 800 bytes each

_Place = tuple[str, int]


class HttpChannel:
    """Channel over one kept connection to each pod. It goes straight to the pods: no proxy, no redirect, no cookies.

    `may_write` is asked before each sync: one changes what a pod enforces.
    """

    def __init__(self, may_write: Callable[[], bool]) -> None:
        self._may_write = may_write
        self._kept: dict[_Place, PodConnection] = {}
        self._buffer = bytearray(READ_BYTES)
        self._swept_at = 0.0

    async def sync(self, pod: PodSeen, token: str, request: SyncRequest) -> UsageReport:
        """One `POST /v1/sync`. Raises ChannelError."""
        if not self._may_write():
            raise NotLeadingError("another replica leads, or may lead soon: this one asks no pod")
        place = (pod.ip or "", pod.admin_port)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return _report(await self._ask(place, _message(place, token, usage.encode(request))))
        except TimeoutError as error:
            raise PodTimeoutError(f"{pod.name} did not answer within {TIMEOUT_SECONDS:g} s") from error
        except OSError as error:
            raise PodUnreachableError(f"{pod.name} cannot be reached at {pod.ip}: {error}") from error
        except MalformedError as error:
            raise BadAnswerError(f"what answers at {pod.ip} is no sidecar: {error}") from error

    def close(self) -> None:
        """Close all connections."""
        for connection in self._kept.values():
            connection.close()
        self._kept.clear()

    async def _ask(self, place: _Place, message: bytes) -> Answer:
        kept = self._kept.pop(place, None)
        if kept is not None and kept.reusable:
            try:
                return await self._ask_on(kept, place, message)
            except LostError as error:
                if not error.unanswered:
                    raise
        return await self._ask_on(await self._connect(place), place, message)

    async def _ask_on(self, connection: PodConnection, place: _Place, message: bytes) -> Answer:
        try:
            answer = await connection.ask(message)
        except BaseException:
            connection.close()
            raise
        if connection.reusable and place not in self._kept:
            self._keep(place, connection)
        else:
            connection.close()
        return answer

    def _keep(self, place: _Place, connection: PodConnection) -> None:
        now = asyncio.get_running_loop().time()
        connection.used_at = now
        self._kept[place] = connection
        if now - self._swept_at > KEEP_SECONDS / 2:
            self._swept_at = now
            for old in [at for at, each in self._kept.items() if now - each.used_at > KEEP_SECONDS]:
                self._kept.pop(old).close()

    async def _connect(self, place: _Place) -> PodConnection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_SECONDS):
            _, connection = await loop.create_connection(
                lambda: PodConnection(self._buffer, LARGEST_REPORT_BYTES), *place
            )
        return connection


@asynccontextmanager
async def http_channel(may_write: Callable[[], bool] = lambda: True) -> AsyncIterator[HttpChannel]:
    """A channel that ends with its context."""
    channel = HttpChannel(may_write)
    try:
        yield channel
    finally:
        channel.close()


def _message(place: _Place, token: str, body: bytes) -> bytes:
    """The whole request. Raises TokenRefusedError where the token cannot be sent: no sidecar has one like it."""
    if not token.isascii() or not token.isprintable():
        raise TokenRefusedError("the pool's token has characters that no sidecar accepts: delete the pool's Secret")
    host = f"[{place[0]}]" if ":" in place[0] else place[0]
    head = (
        f"POST {SYNC_PATH} HTTP/1.1\r\nHost: {host}:{place[1]}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _report(answer: Answer) -> UsageReport:
    if answer.status in (401, 403):
        raise TokenRefusedError("the sidecar does not accept the pool's token; it reads a new one within two minutes")
    if answer.status != 200:
        raise BadAnswerError(f"the sidecar answered {answer.status} to a sync")
    try:
        return read_report(answer.body)
    except DocumentError as error:
        raise BadAnswerError(f"the sidecar's report cannot be read: {error}") from error
