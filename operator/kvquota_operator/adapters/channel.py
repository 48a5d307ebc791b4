"""The channel to the sidecars: one HTTP request and its answer, on connections that are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Final

import aiohttp

from kvquota_api import usage
from kvquota_api.pod_config import DocumentError
from kvquota_api.usage import SYNC_PATH, SyncRequest, UsageReport
from kvquota_operator.ports import BadAnswerError, PodTimeoutError, PodUnreachableError, TokenRefusedError
from kvquota_operator.reconcile.observed import PodSeen

TIMEOUT_SECONDS: Final = 2.0  # a sidecar answers from memory, in milliseconds; a pass waits for the slowest pod
CONNECT_SECONDS: Final = 1.0  # within a cluster; beyond it the node or the pod is gone
KEEP_SECONDS: Final = 60.0  # below the 75 s after which a sidecar closes an idle connection
LARGEST_REPORT_BYTES: Final = 8 * 2**20  # 10,000 tenants at 800 bytes each


class HttpChannel:
    """Channel over a client session, whose time-out is that of one sync."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def sync(self, pod: PodSeen, token: str, request: SyncRequest) -> UsageReport:
        """One `POST /v1/sync`. Raises ChannelError."""
        try:
            async with self._session.post(
                _url(pod),
                data=usage.encode(request),
                headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
                allow_redirects=False,
            ) as response:
                return await _report(response)
        except TimeoutError as error:
            raise PodTimeoutError(f"{pod.name} did not answer within {TIMEOUT_SECONDS:g} s") from error
        except aiohttp.ClientError as error:
            raise PodUnreachableError(f"{pod.name} cannot be reached at {pod.ip}: {error}") from error


@asynccontextmanager
async def http_channel(at_once: int) -> AsyncIterator[HttpChannel]:
    """A channel of `at_once` connections at a time that ends with its context.

    It goes straight to the pods: no proxy, no cookies.
    """
    connector = aiohttp.TCPConnector(limit=at_once, keepalive_timeout=KEEP_SECONDS)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS, sock_connect=CONNECT_SECONDS)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        yield HttpChannel(session)


def _url(pod: PodSeen) -> str:
    address = ip_address(pod.ip or "")
    host = f"[{address}]" if address.version == 6 else str(address)
    return f"http://{host}:{pod.admin_port}{SYNC_PATH}"


async def _report(response: aiohttp.ClientResponse) -> UsageReport:
    if response.status in (401, 403):
        raise TokenRefusedError("the sidecar does not accept the pool's token; it reads a new one within two minutes")
    if response.status != 200:
        raise BadAnswerError(f"the sidecar answered {response.status} to a sync")
    try:
        return usage.decode_report(await _bounded(response))
    except DocumentError as error:
        raise BadAnswerError(f"the sidecar's report cannot be read: {error}") from error


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > LARGEST_REPORT_BYTES:
            raise BadAnswerError(f"the sidecar's report is larger than {LARGEST_REPORT_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)
