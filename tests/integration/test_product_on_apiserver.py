"""The operator and a sidecar before an engine, as processes: what kubectl tells of a refusal and during a flood, and
what becomes of Secrets that are edited and of an API server that is killed."""

import json
import secrets
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai
import pytest

import knobs
import sidecar_program
from operator_replicas import Audit, account, audited_server, replica
from testcluster.apiserver import ApiServer
from testcluster.processes import Keeper, free_port
from wholepath import (
    BATCH,
    SEARCH,
    Programs,
    Tenant,
    api_key,
    documents,
    eventually,
    mount_secret,
    quota,
)

pytestmark = pytest.mark.apiserver

MAIL = Tenant(name="mail", key=f"kvq-{secrets.token_hex(32)}", soft=0, hard=2048)
"""Whose key is rotated."""

TENANTS = (SEARCH, BATCH, MAIL)
NAMESPACE, POOL = "product", "tiny"
ADMIN = "127.6.0.2"  # the pod's address: all of 127.0.0.0/8 is this machine
BLOCKS, BLOCK_TOKENS = 1024, 16
DECODE_RATE = 25  # tokens/s: a stream of some hundred tokens is open while an API server is away
WRITE_S = 5.0  # between two writes of one status, kvquota_operator.reconcile.writes
MINUTE_S = 60.0
AWAY_S = knobs.seconds("KVQUOTA_AWAY_SECONDS", 3.0)
"""And some seconds more until the next one is ready: 600 shows the ten minutes that are too long for every run."""

OTHERS = ("edited", "damaged")
"""Pools without pods, of which only the Secrets are looked at."""

MOST_WRITES = 14
"""After an API server was away, for one edit: a config, the statuses of three pools and quotas, and each once more."""


@dataclass
class Product:
    """`url` is what clients use; `mounted` stands in for the pod's volumes."""

    cluster: ApiServer
    audit: Audit
    url: str
    mounted: Path
    logs: tuple[Path, ...]

    def kubectl(self, *args: str) -> str:
        return self.cluster.kubectl("--namespace", NAMESPACE, *args)

    def apply(self, *objects: dict[str, Any]) -> None:
        self.cluster.kubectl("apply", "--filename", "-", input=documents(*objects))

    def secret(self, pool: str) -> dict[str, Any]:
        """Nothing where there is none."""
        text = self.kubectl("get", "secret", f"kvquota-{pool}", "--ignore-not-found", "--output=json")
        found: dict[str, Any] = json.loads(text) if text else {}
        return found

    def status(self, tenant: Tenant) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", "tq", tenant.name, "--output=json")).get("status", {})
        return found

    def client(self, tenant: Tenant) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=tenant.key, max_retries=0, timeout=MINUTE_S)

    def ask(self, tenant: Tenant, *, limit: int = 1) -> openai.types.Completion:
        return self.client(tenant).completions.create(model="tiny", prompt="hello", max_tokens=limit)

    def knows(self, tenant: Tenant) -> bool:
        """Whether the sidecar knows the tenant's key."""
        try:
            self.ask(tenant)
        except openai.AuthenticationError as error:
            return error.code != "unknown_tenant"
        except (openai.InternalServerError, openai.APIConnectionError):  # it has no config yet
            return False
        return True

    def refusal(self, tenant: Tenant, limit: int) -> str:
        """The sentence that a client gets who asks for so many tokens."""
        with pytest.raises(openai.BadRequestError) as refused:
            self.ask(tenant, limit=limit)
        assert isinstance(refused.value.body, dict)
        return str(refused.value.body["message"])


def model_pool(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "kvquota.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "model": {"name": "tiny", "config": {"preset": "llama-3.2-1b"}, "maxModelLen": 4096},
            "engine": {"type": "vLLM", "version": "0.32", "blockSize": BLOCK_TOKENS},
            "gpu": {"memory": "24Gi", "count": 1},
            "memory": {"kvPool": {"tokens": BLOCKS * BLOCK_TOKENS}, "activation": "1Gi"},
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
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    folder = tmp_path_factory.mktemp("product")
    audit, keeper = Audit(folder), Keeper()
    with audited_server(audit) as server:
        server.create_namespace(NAMESPACE)
        kubeconfig = account(server, "operator", folder)
        try:
            with replica("operator", kubeconfig, NAMESPACE, "--no-leader-elect") as operator:
                yield put_up(server, audit, keeper, folder, operator.log)
        finally:
            keeper.stop()


def put_up(server: ApiServer, audit: Audit, keeper: Keeper, folder: Path, log: Path) -> Product:
    listen = f"127.0.0.1:{free_port()}"
    product = Product(server, audit, f"http://{listen}", folder / "mounted", (log,))
    pools = [model_pool(name) for name in (POOL, *OTHERS)]
    keys = [api_key(NAMESPACE, tenant) for tenant in TENANTS]
    product.apply(*pools, *keys, *(quota(NAMESPACE, tenant, POOL) for tenant in TENANTS), pod())
    eventually("every pool has its Secret", lambda: all(map(product.secret, (POOL, *OTHERS))), product.logs)
    mount_secret(server, NAMESPACE, f"kvquota-{POOL}", product.mounted / "identity")
    sizes = ["--num-gpu-blocks-override", str(BLOCKS), "--max-model-len", "4096", "--decode-rate", str(DECODE_RATE)]
    engine = sidecar_program.engine(keeper, folder, *sizes)
    sidecar = Programs(keeper, folder).sidecar(
        engine=engine, listen=listen, admin=f"{ADMIN}:9600", mounted=product.mounted
    )
    status = json.dumps({"status": {"phase": "Running", "podIP": ADMIN, "podIPs": [{"ip": ADMIN}]}})
    product.kubectl("patch", "pod", "tiny-0", "--subresource=status", "--patch", status)
    product.logs = (log, sidecar.log)
    eventually("the sidecar knows its tenants", lambda: all(map(product.knows, TENANTS)), product.logs)
    return product


def test_describe_says_the_sentence_that_the_client_got(product: Product) -> None:
    said = product.refusal(BATCH, limit=3000)
    eventually("the refusal is in the status", lambda: "lastRefusal" in product.status(BATCH), product.logs)
    described = " ".join(product.kubectl("describe", "tenantquota", BATCH.name).split())
    assert "3,00" in said, "it names what was asked for"
    assert said in described
    assert said not in " ".join(product.kubectl("describe", "tenantquota", SEARCH.name).split())


@contextmanager
def flooding(product: Product) -> Iterator[Counter[str]]:
    """One tenant sends what is refused as fast as it can, the other what is served; counts what was answered."""
    over, answered = threading.Event(), Counter[str]()

    def send(tenant: Tenant) -> None:
        while not over.is_set():
            if tenant is BATCH:
                product.refusal(tenant, limit=3000)
            else:
                product.ask(tenant)
            answered[tenant.name] += 1

    with ThreadPoolExecutor() as threads:
        sending = [threads.submit(send, tenant) for tenant in (SEARCH, BATCH)]
        try:
            yield answered
        finally:
            over.set()
    for each in sending:
        each.result()


def watched(product: Product, seconds: float) -> list[list[str]]:
    """What `kubectl get tq -w` prints in that time: the cells of each line, the head first."""
    access = product.cluster.access
    get = ("--namespace", NAMESPACE, "get", "tq", "-w")
    command = [str(access.kubectl_path), "--kubeconfig", str(access.kubeconfig), *get]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        time.sleep(seconds)
        running.terminate()
        printed, _ = running.communicate()
    return [line.split() for line in printed.splitlines()]


def test_a_watch_during_a_flood_prints_a_line_in_five_seconds(product: Product) -> None:
    seconds = 2 * WRITE_S + 1
    with flooding(product) as answered:
        head, *rows = watched(product, seconds)
    by_name = {
        name: [dict(zip(head, row, strict=True)) for row in rows if row[0] == name] for name in ("batch", "search")
    }
    rejected = [int(row["REJECTED-10M"]) for row in by_name["batch"]]
    at_first, in_turn, before_its_turn = 1, int(seconds // WRITE_S) + 1, 1
    print(f"{dict(answered)} answered, {len(rows)} lines, rejected {rejected}")  # noqa: T201
    assert answered["batch"] > 20
    assert all(2 <= len(lines) <= at_first + in_turn + before_its_turn for lines in by_name.values()), rows
    assert rejected == sorted(rejected)
    assert rejected[-1] > rejected[0]
    assert by_name["batch"][-1]["STATE"] == "Refusing"
    assert {row[0] for row in rows} == {each.name for each in TENANTS}, "the head is printed once"


def test_secrets_that_are_edited_count_within_a_minute_and_those_of_pools_are_mended(product: Product) -> None:
    before = {pool: product.secret(pool) for pool in (POOL, *OTHERS)}
    rotated = replace(MAIL, key=f"kvq-{secrets.token_hex(32)}")
    start = time.monotonic()
    product.apply(api_key(NAMESPACE, rotated))
    product.kubectl("delete", "secret", f"kvquota-{POOL}")
    for pool, field in zip(OTHERS, ("identity.json", "token"), strict=True):
        product.kubectl("patch", "secret", f"kvquota-{pool}", "--patch", json.dumps({"stringData": {field: "x"}}))

    def made_anew() -> bool:
        assert product.knows(SEARCH), "the pod goes on without the Secret"
        return bool(product.secret(POOL))

    eventually("the deleted Secret is made anew", made_anew, product.logs)
    assert product.secret(POOL)["metadata"]["uid"] != before[POOL]["metadata"]["uid"]
    mount_secret(product.cluster, NAMESPACE, f"kvquota-{POOL}", product.mounted / "identity")

    def is_rotated() -> bool:
        assert product.knows(SEARCH), "the other tenant notices nothing"
        return product.knows(rotated) and not product.knows(MAIL)

    eventually("the new key is known and the old one is not", is_rotated, product.logs)
    eventually("the edited one is as it was", lambda: product.secret("edited")["data"] == before["edited"]["data"])
    eventually("the damaged one is whole", lambda: len(product.secret("damaged")["data"]["token"]) > 64)
    took = time.monotonic() - start
    print(f"all after {took:.1f} s")  # noqa: T201
    assert took < MINUTE_S
    assert set(product.secret("damaged")["data"]) == set(before["damaged"]["data"])


def held_stream(product: Product, limit: int) -> "openai.Stream[openai.types.Completion]":
    """A stream that has begun and goes on for limit / DECODE_RATE seconds."""
    more = {"stream_options": {"include_usage": True}, "ignore_eos": True}
    stream = product.client(SEARCH).completions.create(
        model="tiny", prompt="hello", max_tokens=limit, stream=True, extra_body=more
    )
    next(iter(stream))
    return stream


def served_as_ever(product: Product, seconds: float) -> int:
    """How many requests were served, and as many refused with the figure of the quota, in that time."""
    start, asked = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        assert product.knows(SEARCH)
        assert "2,048" in product.refusal(BATCH, limit=3000)
        asked += 1
        time.sleep(0.2)
    return asked


def test_an_api_server_that_is_killed_and_started_again_touches_no_stream_and_causes_no_storm(product: Product) -> None:
    limit = 9 * DECODE_RATE
    streams = [held_stream(product, limit)]
    with product.cluster.away():
        gone = time.time()
        asked = served_as_ever(product, AWAY_S)
        streams.append(held_stream(product, limit))
    back = time.time()
    product.apply(quota(NAMESPACE, SEARCH, POOL, hard=4096))
    eventually(
        "the edit is in the status", lambda: product.status(SEARCH).get("hard", {}).get("tokens") == 4096, product.logs
    )
    converged = time.time() - back
    usages = [list(each)[-1].usage for each in streams]
    got = [None if each is None else each.completion_tokens for each in usages]
    assert got == [limit, limit], "what was open when it went, and when it came back, has come to its end"
    found = product.audit.asked("operator", since=gone)
    written = [(each.verb, each.resource, each.code) for each in product.audit.writes("operator", since=back)]
    print(  # noqa: T201
        f"away for {AWAY_S:.0f} s: {asked} requests served and as many refused; asked again "
        f"{min(each.at for each in found) - back:+.1f} s after it was ready, converged after {converged:.1f} s: "
        f"{Counter(written)}"
    )
    assert len(written) <= MOST_WRITES, Counter(written)
