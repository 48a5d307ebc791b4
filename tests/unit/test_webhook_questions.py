"""What the webhook reads for one question, what it answers, and what it makes of failures."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from aiohttp import ClientConnectorError, ClientSession, TCPConnector

from injection_builders import IMAGE, engine_of, pod, pool
from kvquota_operator.adapters import webhook as webhook_module
from kvquota_operator.adapters.api import Api
from kvquota_operator.adapters.authority import Lifetimes, next_authority, sign
from kvquota_operator.adapters.certificates import load
from kvquota_operator.adapters.listening import ListenError
from kvquota_operator.adapters.webhook import COPIES_AT_ONCE, Injector, Webhook
from kvquota_operator.injection.admission import Review
from kvquota_operator.injection.outcomes import Allowed, Refused
from kvquota_operator.ports import ClusterError, UnreachableError, VanishedError
from kvquota_operator.reconcile.manifests import config_map
from kvquota_operator.settings import Address
from reconcile_builders import decided
from testcluster.processes import free_port

POOLS = "/apis/kvquota.dev/v1alpha1/namespaces/inference/modelpools"
CONFIG_MAPS = "/api/v1/namespaces/inference/configmaps"
NO_FIT: dict[str, Any] = {"memory__kvPool": {"percent": 95}}


class FakeApi:
    """Answers by path; `asked` has the paths in order."""

    def __init__(self, lists: Mapping[str, list[Any]], objects: Mapping[str, Any] | None = None) -> None:
        self.lists = lists
        self.objects = objects or {}
        self.asked: list[str] = []
        self.error: ClusterError | None = None

    async def list(self, path: str, selector: str = "") -> tuple[list[Any], str]:
        self.asked.append(f"{path}?{selector}" if selector else path)
        if self.error is not None:
            raise self.error
        return self.lists[path], "1"

    async def pages(self, path: str, selector: str, limit: int) -> AsyncIterator[tuple[Sequence[Any], str]]:
        found = self.lists[path]
        for at in range(0, max(len(found), 1), limit):
            self.asked.append(f"{path}?{selector}&continue={at}")
            yield found[at : at + limit], "1"

    async def get(self, path: str, *, timeout_seconds: float = 1.0) -> Any:
        self.asked.append(path)
        if path not in self.objects:
            raise VanishedError("404")
        return self.objects[path]


def stored(name: str = "llama-8b", *, created: str = "2026-10-01T00:00:00Z", **changes: Any) -> dict[str, Any]:
    body = pool(**changes).as_written()
    body["metadata"] |= {"name": name, "creationTimestamp": created}
    return dict(body)


def injector(api: FakeApi) -> Injector:
    return Injector(cast("Api", api), FixedClock(), IMAGE)


class FixedClock:
    """A month after a pool that is `stored` was made."""

    def monotonic(self) -> float:
        return 0.0

    def now(self) -> datetime:
        return datetime(2026, 11, 1, tzinfo=UTC)


def review(given: dict[str, Any] | None = None) -> Review:
    return Review("u", "inference", given or pod())


async def allowed(api: FakeApi) -> Allowed:
    outcome = await injector(api).decide(review())
    assert isinstance(outcome, Allowed), outcome
    return outcome


async def test_a_pod_that_does_not_ask_costs_no_request() -> None:
    api, quiet = FakeApi({}), pod()
    quiet["metadata"]["labels"] = {"app": "llama-8b"}
    asked = review(quiet)
    assert await injector(api).decide(asked) == Allowed(asked.pod)
    assert api.asked == []


async def test_with_a_valid_plan_only_the_pools_are_read() -> None:
    api = FakeApi({POOLS: [stored()]})
    found = await allowed(api)
    assert "--kv-cache-memory-bytes" in engine_of(found)["args"]
    assert found.warnings == ()
    assert api.asked == [POOLS]


SECRET = "/api/v1/namespaces/inference/secrets/kvquota-llama-8b"
NOT_YET = "ModelPool llama-8b is new and its Secret kvquota-llama-8b is not there yet: try again in a moment"


@pytest.mark.parametrize(
    ("created", "waits"),
    [
        pytest.param("2026-11-01T00:00:00Z", True, id="was just made: they wait"),
        pytest.param("2026-10-31T23:59:01Z", True, id="was made within a minute: they wait"),
        pytest.param("2026-11-01T00:00:10Z", True, id="was made by a clock that is ahead: they wait"),
        pytest.param("2026-10-31T23:59:00Z", False, id="was made a minute ago: nobody is held back"),
        pytest.param("2026-11-01T01:00:00Z", False, id="is of a clock that is wrong: nobody is held back"),
    ],
)
async def test_pods_of_a_pool_without_a_secret_that(created: str, waits: bool) -> None:
    api = FakeApi({POOLS: [stored(created=created)]})
    outcome = await injector(api).decide(review())
    assert (outcome == Refused(NOT_YET, retry_seconds=1), SECRET in api.asked) == (waits, waits)


async def test_once_a_new_pool_has_its_secret_its_pods_come() -> None:
    api = FakeApi({POOLS: [stored(created="2026-11-01T00:00:00Z")]}, {SECRET: {"type": "whatever"}})
    assert "--kv-cache-memory-bytes" in engine_of(await allowed(api))["args"]


async def test_of_two_pools_the_older_governs_and_the_other_is_named() -> None:
    found = await allowed(FakeApi({POOLS: [stored("b", created="2026-10-02T00:00:00Z"), stored("a")]}))
    assert found.pod["metadata"]["annotations"]["kvquota.dev/injected"].startswith("a/")
    assert found.warnings == ("ModelPool b selects the pod too: the older a governs it",)


async def test_a_pool_that_cannot_be_read_refuses_with_what_is_wrong_with_it() -> None:
    broken = stored()
    broken["spec"]["gpu"] = {"memory": "80Gi", "count": 0}
    outcome = await injector(FakeApi({POOLS: [broken]})).decide(review())
    assert isinstance(outcome, Refused)
    assert outcome.message.startswith("ModelPool llama-8b selects the pod and cannot be read: spec.gpu.count")


async def test_the_last_valid_plan_is_read_from_the_durable_copies() -> None:
    copies = [config_map(config) for config in decided().configs]
    foreign = {"metadata": {"name": "other"}, "data": {}}
    api = FakeApi({POOLS: [stored(**NO_FIT)], CONFIG_MAPS: [foreign] * COPIES_AT_ONCE + copies * 100})
    args = engine_of(await allowed(api))["args"]
    assert args[args.index("--kv-cache-memory-bytes") + 1] == "38654705664"
    asked = f"{CONFIG_MAPS}?kvquota.dev/pool=llama-8b&continue="
    assert api.asked == [POOLS, f"{asked}0", f"{asked}{COPIES_AT_ONCE}"], "as many as it takes to find one"


async def test_without_a_copy_that_has_a_plan_nobody_is_held_back() -> None:
    api = FakeApi({POOLS: [stored(**NO_FIT)], CONFIG_MAPS: [{"metadata": {"name": "other"}, "data": {}}]})
    assert "--kv-cache-memory-bytes" not in engine_of(await allowed(api))["args"]


async def test_of_a_model_that_nobody_knows_the_copies_are_not_read() -> None:
    """What they hold is what engines came up with, and no plan."""
    unknown = {"inline": {"architectures": ["Nobody"], "model_type": "nobody"}}
    api = FakeApi({POOLS: [stored(model__config=unknown)]})
    assert "--kv-cache-memory-bytes" not in engine_of(await allowed(api))["args"]
    assert api.asked == [POOLS]


MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("objects", "planned"),
    [
        pytest.param({f"{CONFIG_MAPS}/model": {"data": {"c.json": json.dumps(MODEL)}}}, True, id="is there"),
        pytest.param({}, False, id="is not there: no plan, and nobody is held back"),
    ],
)
async def test_the_config_of_the_model_in_a_config_map(objects: dict[str, Any], planned: bool) -> None:
    ref = {"configMapRef": {"name": "model", "key": "c.json"}}
    api = FakeApi({POOLS: [stored(model__config=ref)], CONFIG_MAPS: []}, objects)
    assert ("--kv-cache-memory-bytes" in engine_of(await allowed(api))["args"]) is planned


class Shown:
    """A certificate from the start."""

    async def keep(self, context: ssl.SSLContext, ready: asyncio.Event) -> None:
        now = datetime.now(UTC)
        load(context, sign(next_authority(None, "w", now, Lifetimes()), ["127.0.0.1"], now, Lifetimes()))
        ready.set()


@pytest.fixture
async def api() -> FakeApi:
    return FakeApi({POOLS: [stored()]})


@pytest.fixture
async def url(api: FakeApi) -> AsyncIterator[str]:
    port = free_port()
    webhook = Webhook(injector(api), Shown(), Address("127.0.0.1", port))
    async with webhook.listening():
        await webhook.certify()
        assert webhook.ready.is_set()
        yield f"https://127.0.0.1:{port}/inject"


async def asked(url: str, body: bytes) -> tuple[int, str]:
    connector = TCPConnector(ssl=False)
    async with ClientSession(connector=connector) as session, session.post(url, data=body) as answer:
        return answer.status, await answer.text()


def question(given: dict[str, Any]) -> bytes:
    return json.dumps({"request": {"uid": "u", "namespace": "inference", "object": given}}).encode()


async def test_before_there_is_a_certificate_the_address_is_taken_and_no_handshake_succeeds(api: FakeApi) -> None:
    port = free_port()
    webhook = Webhook(injector(api), Shown(), Address("127.0.0.1", port))
    async with webhook.listening():
        with pytest.raises(ClientConnectorError):
            await asked(f"https://127.0.0.1:{port}/inject", question(pod()))
        with pytest.raises(ListenError, match="end what has the port, or give --webhook-listen another"):
            await Webhook(injector(api), Shown(), Address("127.0.0.1", port)).listening().__aenter__()
        await webhook.certify()
        assert (await asked(f"https://127.0.0.1:{port}/inject", question(pod())))[0] == 200


async def test_a_question_is_answered(url: str) -> None:
    status, text = await asked(url, question(pod()))
    response = json.loads(text)["response"]
    assert (status, response["allowed"], response["patchType"]) == (200, True, "JSONPatch")


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff"], ids=["cut", "a list", "no text"])
async def test_what_is_no_question_is_said(url: str, body: bytes) -> None:
    assert (await asked(url, body))[0] == 400


async def test_what_is_not_decided_in_time_is_said(url: str, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_module, "DECIDING_SECONDS", 0.1)
    monkeypatch.setattr(api, "list", lambda *_: asyncio.sleep(60))
    status, text = await asked(url, question(pod()))
    assert (status, text) == (503, "the pod could not be decided on in time: try again in a moment\n")


async def test_an_api_server_that_does_not_answer_refuses_for_the_moment(
    url: str, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.error = UnreachableError("nobody answers")
    _, text = await asked(url, question(pod()))
    says = "the pod's ModelPool cannot be read now (nobody answers): try again in a moment"
    status = json.loads(text)["response"]["status"]
    assert (status["message"], status["details"]) == (says, {"retryAfterSeconds": 1})
    assert caplog.messages[-1] == f"refused pod inference/llama-8b-...: {says}"
