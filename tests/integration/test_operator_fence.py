"""What a replica that does not lead sends: questions to the API server, and nothing that changes anything."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import ClientSession, web
from kubernetes.aio.client import ApiClient, Configuration
from prometheus_client import CollectorRegistry

from http_stand_in import serving
from kvquota_api.usage import SyncRequest
from kvquota_operator.adapters.api import Api, resource_of
from kvquota_operator.adapters.channel import http_channel
from kvquota_operator.adapters.probes import (
    LONGEST_PASS_SECONDS,
    LONGEST_STILLNESS_SECONDS,
    LONGEST_THREAD_STILLNESS_SECONDS,
    Health,
    probes,
)
from kvquota_operator.ports import NotLeadingError, NotServedError
from kvquota_operator.settings import Address
from operator_fakes import moved, pod
from testcluster.processes import free_port


@asynccontextmanager
async def server(seen: list[str], *, status: int = 200) -> AsyncIterator[int]:
    """Says yes to everything and keeps what it was asked."""

    async def handler(request: web.Request) -> web.Response:
        seen.append(f"{request.method} {request.path}")
        return web.json_response({"items": [], "metadata": {"resourceVersion": "1"}}, status=status)

    async with serving(handler) as port:
        yield port


PODS = "/api/v1/namespaces/a/pods"
WRITES: dict[str, Callable[[Api], Awaitable[Any]]] = {
    "create": lambda api: api.create(PODS, {}),
    "apply": lambda api: api.apply(f"{PODS}/b", {}),
    "merge": lambda api: api.merge(f"{PODS}/b", {}),
    "replace": lambda api: api.replace(f"{PODS}/b", {}),
}


@pytest.mark.parametrize("how", WRITES)
async def test_a_write_is_not_sent_by_who_does_not_lead(how: str) -> None:
    seen: list[str] = []
    leads = True
    async with server(seen) as port, ApiClient(Configuration(host=f"http://127.0.0.1:{port}")) as client:
        api = Api(client, may_write=lambda: leads)
        await WRITES[how](api)
        leads = False
        with pytest.raises(NotLeadingError):
            await WRITES[how](api)
        await api.get(f"{PODS}/b")
        await api.list(PODS)
    assert [each.split()[0] for each in seen[1:]] == ["GET", "GET"]


async def test_a_write_that_waited_for_its_turn_is_not_sent_after_the_end() -> None:
    """The question is asked last, not when the write is begun."""
    seen: list[str] = []
    leads = True
    async with server(seen) as port, ApiClient(Configuration(host=f"http://127.0.0.1:{port}")) as client:
        api = Api(client, may_write=lambda: leads)
        writes = [asyncio.create_task(api.create(PODS, {})) for _ in range(100)]
        await asyncio.wait(writes, return_when=asyncio.FIRST_COMPLETED)
        leads = False
        count = len(seen)
        results = await asyncio.gather(*writes, return_exceptions=True)
    refused = [each for each in results if isinstance(each, NotLeadingError)]
    assert len(refused) > 0
    assert len(seen) == 100 - len(refused)
    assert len(seen) <= count + 32, "only those that were on their way"


async def test_a_pod_is_not_asked_by_who_does_not_lead() -> None:
    seen: list[str] = []
    async with server(seen) as port, http_channel(lambda: False) as channel:
        with pytest.raises(NotLeadingError):
            await channel.sync(
                moved(pod(ip="127.0.0.1"), admin_port=port), "t", SyncRequest(config_digest="", identity_digest="")
            )
    assert seen == []


async def test_every_request_is_counted_with_what_became_of_it() -> None:
    counted: list[tuple[str, str, str]] = []
    async with server([]) as good, ApiClient(Configuration(host=f"http://127.0.0.1:{good}")) as client:
        api = Api(client, counted=lambda *each: counted.append(each))
        await api.list(PODS)
        await api.merge("/apis/kvquota.dev/v1alpha1/namespaces/a/modelpools/b/status", {})
    async with server([], status=404) as bad, ApiClient(Configuration(host=f"http://127.0.0.1:{bad}")) as client:
        with pytest.raises(NotServedError):
            await Api(client, counted=lambda *each: counted.append(each)).get(f"{PODS}/b")
    assert counted == [
        ("GET", "pods", "Done"),
        ("PATCH", "modelpools/status", "Done"),
        ("GET", "pods", "NotServed"),
    ]


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        pytest.param("/api/v1/pods", "pods", id="of all namespaces"),
        pytest.param("/api/v1/namespaces/a", "namespaces", id="a namespace itself"),
        pytest.param("/apis/g/v1/namespaces/a/leases/b", "leases", id="an object"),
        pytest.param("/apis/g/v1/namespaces/a/pools/b/status", "pools/status", id="a part of one"),
        pytest.param("/x", "", id="no resource"),
    ],
)
def test_what_a_path_is_about(path: str, resource: str) -> None:
    assert resource_of(path) == resource


@pytest.mark.parametrize(
    ("longest_pass", "stillness", "of_the_thread", "answer"),
    [
        pytest.param(
            LONGEST_PASS_SECONDS,
            LONGEST_STILLNESS_SECONDS,
            LONGEST_THREAD_STILLNESS_SECONDS,
            (200, "ok\n"),
            id="slow is not dead",
        ),
        pytest.param(
            LONGEST_PASS_SECONDS + 1, 0.0, 0.0, (503, "a pass has not ended for 121 s\n"), id="a pass that does not end"
        ),
        pytest.param(
            0.0,
            LONGEST_STILLNESS_SECONDS + 1,
            0.0,
            (503, "a watch has neither heard nor tried anything for 241 s\n"),
            id="a watch that hangs",
        ),
        pytest.param(
            0.0,
            0.0,
            LONGEST_THREAD_STILLNESS_SECONDS + 1,
            (503, "the thread that watches pools and quotas has not run for 61 s\n"),
            id="a thread that hangs",
        ),
    ],
)
async def test_when_the_kubelet_is_to_start_the_operator_anew(
    longest_pass: float, stillness: float, of_the_thread: float, answer: tuple[int, str]
) -> None:
    address = Address("127.0.0.1", free_port())
    health = Health(lambda: longest_pass, lambda: stillness, lambda: of_the_thread, asyncio.Event())
    url = f"http://{address.host}:{address.port}/healthz"
    async with probes(address, health, CollectorRegistry()), ClientSession() as session, session.get(url) as got:
        assert (got.status, await got.text()) == answer


ENDED = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "answer"),
    [
        pytest.param(ENDED - timedelta(seconds=1), (200, "ok\n"), id="a certificate with a second left"),
        pytest.param(
            ENDED,
            (
                503,
                "the webhook's certificate ended at 2026-11-01T12:00:00+00:00: no API server believes it, so no pod"
                " that asks for the sidecar is created. The log says why there is no newer one\n",
            ),
            id="a certificate that has ended",
        ),
    ],
)
async def test_a_webhook_that_nobody_believes_is_not_ready(now: datetime, answer: tuple[int, str]) -> None:
    address, known = Address("127.0.0.1", free_port()), asyncio.Event()
    known.set()
    health = Health(
        lambda: 0.0, lambda: 0.0, lambda: 0.0, known, known, certificate_until=lambda: ENDED, now=lambda: now
    )
    url = f"http://{address.host}:{address.port}/readyz"
    async with probes(address, health, CollectorRegistry()), ClientSession() as session, session.get(url) as got:
        assert (got.status, await got.text()) == answer
