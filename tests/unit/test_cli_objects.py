"""Which edits of the files take effect, and what a cluster made of them shows the operator."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kvquota_cli.embedded.file_cluster import FileCluster
from kvquota_cli.embedded.identity import engine_pod, new_secret
from kvquota_cli.embedded.objects import News, Objects
from kvquota_cli.manifests.documents import read_documents
from kvquota_cli.manifests.last_good import InForce
from kvquota_cli.manifests.places import ObjectKey
from kvquota_operator.ports import VanishedError
from kvquota_operator.reconcile.observed import InvalidSeen, KeyFound, KeyProblem, Observed, PoolKey, QuotaSeen
from kvquota_operator.reconcile.plan import EventWanted

START = datetime(2026, 11, 1, 12, tzinfo=UTC)
KEY = "kvq-" + "0123456789abcdef" * 4
POOL = """\
apiVersion: kvquota.dev/v1alpha1
kind: ModelPool
metadata: {name: pool, namespace: ns}
spec:
  selector: {matchLabels: {app: x}}
  model: {name: model, config: {preset: llama-3.2-1b}, maxModelLen: 4096}
  engine: {type: vLLM}
  gpu: {memory: 24Gi}
"""
QUOTA = """\
apiVersion: kvquota.dev/v1alpha1
kind: TenantQuota
metadata: {name: q, namespace: ns}
spec:
  tenant: search
  modelPoolRef: {name: pool}
  priority: 1
  identity: {apiKeys: [{secretRef: {name: s, key: key}}]}
"""
SECRET = f"""\
apiVersion: v1
kind: Secret
type: kvquota.dev/api-key
metadata: {{name: s, namespace: ns}}
stringData: {{key: {KEY}}}
"""
Q = ObjectKey("TenantQuota", "ns", "q")


def force(*texts: str) -> InForce:
    return InForce(tuple(each for index, text in enumerate(texts) for each in read_documents(text, f"{index}.yaml")))


def numbered() -> Callable[[], str]:
    ids = iter(f"uid-{number}" for number in range(1, 100))
    return lambda: next(ids)


def objects(*texts: str) -> Objects:
    held = Objects("default", numbered())
    held.take(force(*texts), START)
    return held


def meta(held: Objects, key: ObjectKey = Q) -> tuple[Any, ...]:
    stored = held.find(key)
    assert stored is not None
    metadata = stored.body["metadata"]
    return metadata["uid"], metadata["generation"], metadata["creationTimestamp"]


def spec(held: Objects, key: ObjectKey = Q) -> Any:
    stored = held.find(key)
    assert stored is not None
    return stored.body["spec"]


def test_an_object_gets_uid_generation_and_creation_time_as_in_a_cluster() -> None:
    assert meta(objects(QUOTA)) == ("uid-1", 1, "2026-11-01T12:00:00Z")


def test_a_changed_spec_is_a_new_generation_and_a_changed_label_is_not() -> None:
    held = objects(QUOTA)
    later = START + timedelta(minutes=1)
    labelled = QUOTA.replace("namespace: ns", "namespace: ns, labels: {a: b}")
    assert held.take(force(labelled), later) == News(changed=True, told=(), cleared=False)
    assert meta(held) == ("uid-1", 1, "2026-11-01T12:00:00Z")
    assert held.take(force(QUOTA.replace("priority: 1", "priority: 2")), later).changed
    assert meta(held) == ("uid-1", 2, "2026-11-01T12:00:00Z")


def test_the_same_files_again_are_no_change() -> None:
    assert objects(QUOTA, SECRET).take(force(QUOTA, SECRET), START).changed is False


def test_an_object_that_was_gone_comes_back_as_a_new_one_without_its_old_status() -> None:
    held = objects(QUOTA)
    assert held.write_status(Q, {"state": "Ready"})
    assert held.take(force(), START).changed
    assert held.find(Q) is None
    assert held.write_status(Q, {}) is False
    held.take(force(QUOTA), START)
    assert meta(held)[0] == "uid-2"
    assert [stored.status for _, stored in held.all_of("TenantQuota")] == [{}]


def test_a_status_in_a_file_is_passed_over_and_a_written_one_is_kept() -> None:
    held = objects(QUOTA + "status: {state: Made-up}\n")
    stored = held.find(Q)
    assert stored is not None
    assert stored.whole()["status"] == {}
    held.write_status(Q, {"state": "Ready"})
    held.take(force(QUOTA.replace("priority: 1", "priority: 2")), START)
    stored = held.find(Q)
    assert stored is not None
    assert stored.whole()["status"] == {"state": "Ready"}


@pytest.mark.parametrize(
    ("text", "edited", "finding"),
    [
        pytest.param(
            QUOTA,
            QUOTA.replace("priority: 1", "priority: 1001"),
            "0.yaml:7: error: TenantQuota ns/q: spec.priority: 1001 must be at most 1000",
            id="a value out of bounds",
        ),
        pytest.param(
            QUOTA,
            QUOTA.replace("tenant: search", "tenant: other"),
            "0.yaml:5: error: TenantQuota ns/q: spec.tenant: tenant cannot be changed: "
            "create a new TenantQuota and delete this one",
            id="a field that cannot be changed",
        ),
        pytest.param(
            SECRET,
            SECRET.replace("stringData", "data"),
            "0.yaml:5: error: Secret ns/s: data.key: not base64: encode it, or write it as it is under stringData",
            id="bad base64",
        ),
        pytest.param(
            POOL,
            POOL.replace("engine: {type: vLLM}", "engine: {type: vllm}"),
            "0.yaml:7: error: ModelPool ns/pool: spec.engine.type: 'vllm' must be one of "
            "'vLLM', 'SGLang', 'LlamaCpp', 'TensorRTLLM' or 'OpenAI'",
            id="a word in the wrong case",
        ),
    ],
)
def test_an_edit_that_would_be_refused_leaves_the_object_and_is_told_once(text: str, edited: str, finding: str) -> None:
    held = objects(text)
    before = [stored for kind in ("ModelPool", "TenantQuota", "Secret") for _, stored in held.all_of(kind)]
    news = held.take(force(edited), START)
    assert [str(each) for each in news.told] == [finding]
    assert news.changed is False
    assert held.take(force("# moved down a line\n" + edited), START) == News(changed=False, told=(), cleared=False)
    assert [stored for kind in ("ModelPool", "TenantQuota", "Secret") for _, stored in held.all_of(kind)] == before


def test_a_repaired_edit_takes_effect_and_is_told_to_be_clear_and_the_same_slip_again_is_told_again() -> None:
    held = objects(QUOTA)
    bad, good = force(QUOTA.replace("priority: 1", "priority: x")), force(QUOTA.replace("priority: 1", "priority: 2"))
    assert len(held.take(bad, START).told) == 1
    assert held.take(good, START) == News(changed=True, told=(), cleared=True)
    assert spec(held)["priority"] == 2
    assert len(held.take(bad, START).told) == 1
    assert spec(held)["priority"] == 2


def test_the_other_object_of_a_file_takes_effect_beside_a_bad_one() -> None:
    other = QUOTA.replace("name: q", "name: r").replace("tenant: search", "tenant: batch")
    held = objects(f"{QUOTA}---\n{other}")
    held.take(
        force(f"{QUOTA.replace('priority: 1', 'priority: x')}---\n{other.replace('priority: 1', 'priority: 3')}"), START
    )
    assert [stored.body["spec"]["priority"] for _, stored in held.all_of("TenantQuota")] == [1, 3]


def test_an_object_that_was_never_good_is_held_as_it_is_and_any_edit_of_it_counts() -> None:
    held = objects(QUOTA.replace("priority: 1", "priority: x"))
    assert spec(held)["priority"] == "x"
    held.take(force(QUOTA.replace("priority: 1", "priority: y")), START)
    assert spec(held)["priority"] == "y"
    held.take(force(QUOTA), START)
    assert (spec(held)["priority"], meta(held)[:2]) == (1, ("uid-1", 3))


def test_objects_that_mean_nothing_to_kvquota_are_not_held() -> None:
    foreign = POOL.replace("kvquota.dev/v1alpha1", "serving.example/v1")
    deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n"
    held = objects(foreign, deployment)
    assert [list(held.all_of(kind)) for kind in ("ModelPool", "Deployment")] == [[], []]


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        pytest.param(
            QUOTA.replace("TenantQuota", "TenantQouta"),
            "0.yaml:2: error: TenantQouta ns/q: kind: TenantQouta is no kind of kvquota.dev/v1alpha1: "
            "it is one of ModelPool, TenantQuota",
            id="a misspelt kind",
        ),
        pytest.param(
            QUOTA.replace("v1alpha1", "v1"),
            "0.yaml:1: error: TenantQuota ns/q: apiVersion: 'kvquota.dev/v1' must be kvquota.dev/v1alpha1",
            id="another version",
        ),
    ],
)
def test_a_slip_in_kind_or_version_is_not_passed_over(text: str, finding: str) -> None:
    assert [str(each) for each in Objects("default", numbered()).take(force(text), START).told] == [finding]


def cluster(held: Objects) -> FileCluster:
    return FileCluster(held, engine_pod("ns"), new_secret(), tell=lambda _: None)


async def observed(held: Objects, pool: str = "pool") -> Observed:
    found = await cluster(held).observe(PoolKey("ns", pool))
    assert found is not None
    return found


async def test_the_operator_sees_the_pool_its_quotas_their_keys_and_one_governed_pod() -> None:
    other = QUOTA.replace("name: q", "name: r").replace("{name: pool}", "{name: other}")
    seen = await observed(objects(POOL, QUOTA, SECRET, other))
    assert [each.quota.metadata.name for each in seen.quotas] == ["q"]
    assert seen.keys == {("s", "key"): KeyFound(KEY)}
    assert [(pod.governed, pod.ready, pod.deleting) for pod in seen.pods] == [(True, True, False)]
    assert seen.secret is not None
    assert len(seen.secret.token) == len(seen.secret.pepper) == 64


TRUSTING = (
    POOL
    + """\
  sidecar:
    identity:
      jwt: {issuer: i, audience: a, keysRef: {configMap: {name: jwks, key: set}}}
      trustedHeader: {name: x-tenant, sharedSecretRef: {name: s, key: key}}
"""
)
JWKS = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: jwks, namespace: ns}\ndata: {set: '{\"keys\": []}'}\n"


async def test_the_operator_sees_what_the_pool_says_of_its_clients() -> None:
    seen = await observed(objects(TRUSTING, JWKS, SECRET))
    assert (seen.jwks, seen.keys) == (KeyFound('{"keys": []}'), {("s", "key"): KeyFound(KEY)})
    in_secret = TRUSTING.replace("configMap: {name: jwks, key: set}", "secret: {name: s, key: key}")
    seen = await observed(objects(in_secret, SECRET))
    assert seen.jwks == seen.keys["s", "key"] == KeyFound(KEY)
    seen = await observed(objects(TRUSTING))
    assert [type(each) for each in (seen.jwks, *seen.keys.values())] == [KeyProblem, KeyProblem]


async def test_a_pool_that_no_file_has_is_gone() -> None:
    assert await cluster(objects(QUOTA)).observe(PoolKey("ns", "pool")) is None


async def test_the_end_of_a_pool_is_told_once_and_its_quotas_are_orphans_of_the_pools_that_are_left() -> None:
    lines: list[str] = []
    held = objects(POOL, QUOTA)
    files = FileCluster(held, engine_pod("ns"), new_secret(), tell=lines.append)
    key = PoolKey("ns", "pool")
    await files.observe(key)
    held.take(force(POOL.replace("name: pool", "name: pools"), QUOTA), START)
    assert [await files.observe(key), await files.observe(key)] == [None, None]
    found = await files.orphans(key)
    await files.record("ns", EventWanted("TenantQuota", "q", "", "Warning", "PoolNotFound", "not told again"))
    assert ([each.quota.metadata.name for each in found.quotas], found.invalid, found.pools) == (["q"], (), ("pools",))
    assert lines == [
        "ModelPool ns/pool is gone from the manifests: its quotas stay in force on the sidecar until it is back or this"
        " process ends"
    ]


async def test_objects_that_do_not_parse_are_seen_as_such_with_their_status() -> None:
    held = objects(POOL.replace("type: vLLM", "type: x"), QUOTA.replace("priority: 1", "priority: x"))
    held.write_status(Q, {"state": "Invalid"})
    seen = await observed(held)
    assert isinstance(seen.pool, InvalidSeen)
    assert [(each.kind, each.name, each.status) for each in seen.invalid] == [
        ("TenantQuota", "q", {"state": "Invalid"})
    ]


@pytest.mark.parametrize(
    ("secret", "reason"),
    [
        pytest.param("", "APIKeyNotFound", id="no Secret"),
        pytest.param(SECRET.replace("key: kvq", "other: kvq"), "APIKeyNotFound", id="no such key in it"),
        pytest.param(SECRET.replace("kvquota.dev/api-key", "Opaque"), "WrongSecretType", id="another type"),
        pytest.param(SECRET.replace("namespace: ns", "namespace: other"), "APIKeyNotFound", id="another namespace"),
    ],
)
async def test_a_key_that_cannot_be_read_is_a_problem_with_the_reason_of_a_cluster(secret: str, reason: str) -> None:
    problem = (await observed(objects(POOL, QUOTA, secret))).keys["s", "key"]
    assert isinstance(problem, KeyProblem)
    assert problem.reason == reason


async def test_a_model_config_comes_from_its_config_map() -> None:
    pool = POOL.replace("{preset: llama-3.2-1b}", "{configMapRef: {name: c, key: config.json}}")
    config_map = (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: ns}\ndata: {config.json: '{\"a\": 1}'}\n"
    )
    assert (await observed(objects(pool, config_map))).model_config == {"a": 1}
    assert (await observed(objects(pool))).model_config is None


async def test_a_status_that_is_written_is_seen_at_the_next_look_and_one_of_nothing_has_vanished() -> None:
    held = objects(POOL, QUOTA)
    files = cluster(held)
    before = await files.observe(PoolKey("ns", "pool"))
    await files.write_quota_status("ns", "q", {"state": "Ready"})
    await files.write_pool_status(PoolKey("ns", "pool"), {"state": "Ready"})
    after = await files.observe(PoolKey("ns", "pool"))
    assert before is not None
    assert after is not None
    assert [dict(each.status) for each in (before.quotas[0], after.quotas[0])] == [{}, {"state": "Ready"}]
    assert after.pool_status == {"state": "Ready"}
    with pytest.raises(VanishedError):
        await files.write_quota_status("ns", "absent", {})


async def test_an_edit_is_seen_at_the_next_look() -> None:
    held = objects(POOL, QUOTA)
    files = cluster(held)
    await files.observe(PoolKey("ns", "pool"))
    held.take(force(POOL, QUOTA.replace("priority: 1", "priority: 7")), START)
    seen = await files.observe(PoolKey("ns", "pool"))
    assert seen is not None
    assert [each.quota.spec.priority for each in seen.quotas if isinstance(each, QuotaSeen)] == [7]
