"""The whole path on a real API server and a real vLLM: apply, send, be refused, see it in kubectl, leave, be freed."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from testcluster.apiserver import ApiServer
from testcluster.cluster import ESTABLISHED
from testcluster.processes import Keeper, free_port
from testengine.port import EngineUnderTest
from testengine.tiny_model import tiny_model
from wholepath import (
    BATCH,
    DEADLINE_S,
    SEARCH,
    Programs,
    Tenant,
    api_key,
    documents,
    eventually,
    gauge,
    get_text,
    mount_secret,
    quota,
    usage_columns,
)

pytestmark = [pytest.mark.apiserver, pytest.mark.engine]

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "whole-path"
POOL = "tiny"
ADMIN = "127.6.0.1"  # the pod's address: all of 127.0.0.0/8 is this machine
KILLED_CLIENT = """
import sys, openai
url, key, limit = sys.argv[1:]
stream = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0).chat.completions.create(
    model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=int(limit), stream=True,
    extra_body={"ignore_eos": True},
)
for _ in stream:
    pass
"""
LONG = "The quick brown fox jumps over the lazy dog. "


@dataclass(frozen=True, slots=True)
class Running:
    """The product at work before the engine; `url` is what clients use."""

    cluster: ApiServer
    engine: EngineUnderTest
    url: str
    logs: tuple[Path, ...]

    def client(self, tenant: Tenant, *, retries: int = 0) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=tenant.key, max_retries=retries, timeout=3 * DEADLINE_S)

    def usage(self, tenant: Tenant) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(get_text(f"{self.url}/v1/usage", {"Authorization": f"Bearer {tenant.key}"}))
        return found

    def knows(self, tenant: Tenant) -> bool:
        try:
            self.usage(tenant)
        except OSError:
            return False
        return True

    def refused(self, tenant: Tenant) -> int:
        """Requests of the tenant refused since the sidecar began."""
        rejected: dict[str, int] = self.usage(tenant)["total"]["rejected"]
        return sum(rejected.values())

    def pool_status(self) -> dict[str, Any]:
        found = self.cluster.kubectl("get", "kvmp", POOL, "--namespace", NAMESPACE, "--output=json")
        status: dict[str, Any] = json.loads(found).get("status", {})
        return status

    def engine_counts(self, metric: str) -> float:
        return gauge(get_text(f"{self.engine.base_url}/metrics"), metric)

    def engine_is_idle(self) -> bool:
        return self.engine_counts("vllm:num_requests_running") + self.engine_counts("vllm:num_requests_waiting") == 0

    def holds(self, tenant: Tenant) -> tuple[int, int, int]:
        """The ledger's own word: blocks reserved, blocks used, sequences in flight."""
        usage = self.usage(tenant)
        return usage["reserved"], usage["used"], usage["inFlight"]

    def idle(self) -> bool:
        """Whether neither the engine runs anything nor the ledger charges anybody."""
        return self.engine_is_idle() and {self.holds(tenant) for tenant in (SEARCH, BATCH)} == {(0, 0, 0)}

    def in_flight_columns(self) -> set[str]:
        return {row["INFLIGHT"] for row in usage_columns(self.cluster, NAMESPACE).values()}


def pool(engine: EngineUnderTest) -> dict[str, Any]:
    config = json.loads((tiny_model() / "config.json").read_text())
    return {
        "apiVersion": "kvquota.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {"name": POOL, "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": {"app": POOL}},
            "model": {
                "name": engine.model,
                "config": {"inline": config},
                "weightDtype": "bf16",
                "maxModelLen": engine.max_model_len,
            },
            "engine": {"type": "vLLM", "version": "0.32", "blockSize": engine.block_tokens},
            "gpu": {"memory": "8Gi", "count": 1},
            "memory": {"kvPool": {"tokens": engine.blocks * engine.block_tokens}, "activation": "1Gi"},
        },
    }


def pod() -> dict[str, Any]:
    """A pod as the API server stores it; nothing runs it, the test is its kubelet."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "tiny-0", "namespace": NAMESPACE, "labels": {"app": POOL}},
        "spec": {
            "initContainers": [{"name": "kvquota", "image": "kvquota/sidecar:test", "restartPolicy": "Always"}],
            "containers": [{"name": "vllm", "image": "vllm:test"}],
        },
    }


@pytest.fixture(scope="module")
def running(apiserver: ApiServer, vllm: EngineUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("whole-path")
    keeper = Keeper()
    programs = Programs(keeper, folder)
    for manifest in sorted((ROOT / "crds").glob("*.yaml")):
        apiserver.kubectl("apply", "--filename", manifest)
    apiserver.kubectl("wait", ESTABLISHED, "crd", "--all", "--timeout=60s")
    apiserver.create_namespace(NAMESPACE)
    keys = [api_key(NAMESPACE, tenant) for tenant in (SEARCH, BATCH)]
    quotas = [quota(NAMESPACE, tenant, POOL) for tenant in (SEARCH, BATCH)]
    apiserver.kubectl("apply", "--filename", "-", input=documents(pool(vllm), *keys, *quotas, pod()))
    try:
        operator = programs.operator(apiserver, NAMESPACE)
        secret = ("get", "secret", f"kvquota-{POOL}", "--namespace", NAMESPACE, "--ignore-not-found", "--output=name")
        eventually("the pool has its Secret", lambda: apiserver.kubectl(*secret) != "", [operator.log])
        mount_secret(apiserver, NAMESPACE, f"kvquota-{POOL}", folder / "identity")
        listen = f"127.0.0.1:{free_port()}"
        sidecar = programs.sidecar(engine=vllm.base_url, listen=listen, admin=f"{ADMIN}:9600", mounted=folder)
        status = json.dumps({"status": {"phase": "Running", "podIP": ADMIN, "podIPs": [{"ip": ADMIN}]}})
        patch = ("patch", "pod", "tiny-0", "--namespace", NAMESPACE, "--subresource=status", "--patch", status)
        apiserver.kubectl(*patch)
        running = Running(apiserver, vllm, f"http://{listen}", (operator.log, sidecar.log))
        eventually("the sidecar knows its tenants", lambda: running.knows(SEARCH), running.logs)
        yield running
    finally:
        keeper.stop()


def ask(client: openai.OpenAI, text: str, *, limit: int = 4) -> str:
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": text}], max_tokens=limit, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == limit
    return answer.choices[0].message.content or ""


def held_stream(client: openai.OpenAI, *, limit: int) -> "openai.Stream[openai.types.chat.ChatCompletionChunk]":
    """A stream that has begun and goes on for a while."""
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": LONG}],
        max_tokens=limit,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    return stream


def test_the_planned_pool_is_what_the_engine_came_up_with(running: Running) -> None:
    def applied() -> bool:
        states = {each["type"]: each["status"] for each in running.pool_status().get("conditions", [])}
        return (states.get("PlanValid"), states.get("PartitionApplied")) == ("True", "True")

    eventually("PlanValid and PartitionApplied are True", applied, running.logs)


def test_both_tenants_chat_with_the_unchanged_client(running: Running) -> None:
    for tenant in (SEARCH, BATCH):
        ask(running.client(tenant), "hello")


def test_a_stream_passes_whole(running: Running) -> None:
    stream = running.client(SEARCH).chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = list(stream)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8


def test_an_unknown_key_is_refused(running: Running) -> None:
    stranger = openai.OpenAI(base_url=f"{running.url}/v1", api_key="kvq-" + "00" * 32, max_retries=0)
    with pytest.raises(openai.AuthenticationError) as refusal:
        ask(stranger, "hello")
    assert refusal.value.code == "unknown_tenant"


def held_completion(client: openai.OpenAI, *, prompt: int, limit: int) -> "openai.Stream[openai.types.Completion]":
    """A stream that has begun, of a prompt of exactly `prompt` tokens."""
    stream = client.completions.create(
        model="tiny", prompt=[300] * prompt, max_tokens=limit, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    return stream


def complete(client: openai.OpenAI, *, prompt: int) -> openai.types.Completion:
    """A short answer to a prompt of exactly `prompt` tokens."""
    return client.completions.create(model="tiny", prompt=[301] * prompt, max_tokens=4)


def test_the_client_that_is_refused_gets_through_by_its_own_retries(running: Running) -> None:
    before, patient = running.refused(BATCH), running.client(BATCH, retries=20)
    patient.models.list()  # connected: what is held ends by itself, and soon on a quick engine
    with held_completion(running.client(BATCH), prompt=1000, limit=1000) as stream:
        reading = threading.Thread(target=lambda: list(stream))
        reading.start()
        assert complete(patient, prompt=1500).choices[0].finish_reason is not None
        reading.join()
    assert running.refused(BATCH) > before


def test_from_apply_to_refusal_to_kubectl(running: Running) -> None:
    """The story in one: one tenant passes its hard and is refused, the other is served, and kubectl tells."""
    shown = int(usage_columns(running.cluster, NAMESPACE)["batch"]["REJECTED-10M"] or 0)
    with held_completion(running.client(BATCH), prompt=1000, limit=1000):
        with pytest.raises(openai.RateLimitError) as refusal:
            complete(running.client(BATCH), prompt=1500)
        ask(running.client(SEARCH), "hello")
    assert refusal.value.code == "tenant_kv_quota_exceeded"
    assert 1 <= int(refusal.value.response.headers["retry-after"]) <= 60
    assert "Shorten the input" in refusal.value.message
    assert "wait" in refusal.value.message
    eventually("everything is released", running.idle, running.logs)

    def told() -> bool:
        """The refusal is counted, and the status is one of after the requests."""
        rows = usage_columns(running.cluster, NAMESPACE)
        idle = {(row["USED"], row["INFLIGHT"]) for row in rows.values()} == {("0", "0")}
        return idle and int(rows["batch"]["REJECTED-10M"] or 0) > shown

    eventually("kubectl get tq shows the refusal", told, running.logs)
    rows = usage_columns(running.cluster, NAMESPACE)
    assert {name: (row["SOFT"], row["HARD"], row["USED"], row["INFLIGHT"]) for name, row in rows.items()} == {
        "search": ("4096", "8192", "0", "0"),
        "batch": ("0", "2048", "0", "0"),
    }
    wanted = "NAME TENANT POOL SOFT HARD USED INFLIGHT REJECTED-10M EVICTED-10M STATE AGE"
    assert set(rows["search"]) == set(wanted.split())


def test_kubectl_shows_use_while_a_request_runs(running: Running) -> None:
    def busy() -> bool:
        row = usage_columns(running.cluster, NAMESPACE)["search"]
        return int(row["INFLIGHT"] or 0) == 1 and int(row["USED"] or 0) > 0

    streams = []
    try:
        for _ in range(20):  # a stream of 1,900 tokens lasts a few seconds: go on until the status has shown one
            streams.append(held_stream(running.client(SEARCH), limit=1900))
            if any(busy() for _ in range(20)):
                return
            streams.pop().close()
    finally:
        for stream in streams:
            stream.close()
    raise AssertionError("kubectl get tq never showed the running request")


def test_a_client_that_is_killed_mid_stream_leaves_nothing_behind(running: Running) -> None:
    """vLLM would take 8 s for the whole answer; that it stopped early is seen in the tokens that it made."""
    eventually("the engine and the ledger are idle before", running.idle, running.logs)
    made, limit = running.engine_counts("vllm:generation_tokens_total"), 1900
    client = subprocess.Popen([sys.executable, "-c", KILLED_CLIENT, running.url, SEARCH.key, str(limit)])
    try:
        eventually("the ledger holds the request", lambda: running.holds(SEARCH)[2] == 1, running.logs)
        eventually("the engine runs it", lambda: not running.engine_is_idle(), running.logs)
        assert running.holds(SEARCH)[0] > 0
    finally:
        client.kill()
        client.wait()
    eventually("the engine and the ledger are idle after", running.idle, running.logs)
    assert running.engine_counts("vllm:generation_tokens_total") - made < limit
    eventually("kubectl shows it", lambda: running.in_flight_columns() == {"0"}, running.logs)


def test_a_lowered_hard_binds_the_next_request_without_a_restart(running: Running) -> None:
    client = running.client(BATCH)
    ask(client, "hello", limit=600)
    apply = ("apply", "--filename", "-")
    running.cluster.kubectl(*apply, input=documents(quota(NAMESPACE, BATCH, POOL, hard=512)))

    def refused() -> bool:
        try:
            ask(client, "hello", limit=600)
        except openai.BadRequestError as error:
            return error.code == "request_exceeds_kv_quota"
        return False

    eventually("the lowered hard is in force", refused, running.logs)
    running.cluster.kubectl(*apply, input=documents(quota(NAMESPACE, BATCH, POOL)))

    def admitted() -> bool:
        try:
            return ask(client, "hello", limit=600) is not None
        except openai.BadRequestError:
            return False

    eventually("the raised hard is in force", admitted, running.logs)


def test_a_broken_edit_keeps_the_last_good_plan_and_says_so(running: Running, vllm: EngineUnderTest) -> None:
    broken = pool(vllm)
    broken["spec"]["model"]["config"] = {"preset": "no-such-model"}
    before = running.pool_status()["kv"]["cap"]
    running.cluster.kubectl("apply", "--filename", "-", input=documents(broken))

    def said() -> bool:
        found = {each["type"]: each for each in running.pool_status()["conditions"]}["PlanValid"]
        return found["status"] == "False" and "no-such-model" in found["message"]

    try:
        eventually("the condition names the preset", said, running.logs)
        assert running.pool_status()["kv"]["cap"] == before
        with pytest.raises(openai.BadRequestError) as refusal:
            ask(running.client(BATCH), "hello", limit=2040)
        assert refusal.value.code in {"request_exceeds_kv_quota", "context_length_exceeded"}
        assert refusal.value.response.headers["x-kvquota-hard-tokens"] == str(BATCH.hard)
        ask(running.client(SEARCH), "hello")
    finally:
        running.cluster.kubectl("apply", "--filename", "-", input=documents(pool(vllm)))
    eventually("the plan is valid again", lambda: not said(), running.logs)
