"""`kvquota render`: what a pod would get, said without a cluster, and why it would get nothing, with file and line."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvquota_api.pod_config import decode_config
from kvquota_cli.__main__ import main

POOL = """\
apiVersion: kvquota.dev/v1alpha1
kind: ModelPool
metadata: {name: NAME}
spec:
  selector: {matchLabels: {app: APP}}
  model: {name: m, config: {preset: llama-3.2-1b}, maxModelLen: 4096}
  engine: {type: vLLM}
  gpu: {memory: MEMORY}
  memory: {kvPool: {percent: 50}}
---
"""
QUOTA = """\
apiVersion: kvquota.dev/v1alpha1
kind: TenantQuota
metadata: {name: search}
spec: {tenant: search, modelPoolRef: {name: POOL}, scope: SCOPE, kv: {hard: {tokens: 64000}}, maxContextTokens: 1600}
---
"""
MOUNTED = "kvq-" + "0123456789abcdef" * 2


def pool(name: str = "pool", app: str = "x", memory: str = "24Gi") -> str:
    return POOL.replace("NAME", name).replace("APP", app).replace("MEMORY", memory)


def quota(scope: str = "Pool", pool: str = "pool") -> str:
    return QUOTA.replace("SCOPE", scope).replace("POOL", pool)


def pod(name: str, *, app: str = "x", inject: bool = True, mounts: str = "", **spec: Any) -> str:
    labels = {"app": app} | ({"kvquota.dev/inject": "true"} if inject else {})
    volumes = [{"name": "kvquota-config", "configMap": {"name": mounts}}] if mounts else []
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "vllm", "args": ["m"]}], "volumes": volumes, **spec},
    }
    return yaml.safe_dump(body) + "---\n"


def render(
    folder: Path, capsys: pytest.CaptureFixture[str], *options: str, texts: tuple[str, ...]
) -> tuple[int, str, str]:
    """Exit code, and what was printed on standard output and as errors, without the folder's name."""
    for place, text in enumerate(texts):
        (folder / f"{place}.yaml").write_text(text)
    code = main(["render", "--manifests", str(folder), *options])
    printed = capsys.readouterr()
    return code, printed.out, printed.err.replace(f"{folder}/", "")


def hard(config: str) -> int:
    (share,) = decode_config(config).tenants
    return share.hard_blocks


@pytest.mark.parametrize(
    ("pods", "named", "expected"),
    [
        pytest.param("", "new", 4000, id="a pod that is not there yet, alone"),
        pytest.param(pod("a") + pod("b"), "a", 2000, id="a pod beside another"),
        pytest.param(pod("a") + pod("b"), "c", 1333, id="a pod that is not there yet, beside two"),
        pytest.param(pod("a") + pod("b", inject=False), "a", 4000, id="a pod without sidecar has no part"),
        pytest.param(pod("a") + pod("b", app="y"), "a", 4000, id="a pod of nobody has no part"),
        pytest.param(
            pod("a") + pod("b").replace("spec:", "status: {phase: Succeeded}\nspec:"),
            "a",
            4000,
            id="a pod that has finished has no part",
        ),
        pytest.param(
            pod("a", inject=False, initContainers=[{"name": "kvquota"}]), "a", 4000, id="a pod that has the sidecar"
        ),
    ],
)
def test_the_part_of_a_pod(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pods: str, named: str, expected: int
) -> None:
    code, out, err = render(tmp_path, capsys, "--pod", named, texts=(pool(), quota(), pods))
    assert (code, err, hard(out)) == (0, "", expected)


def test_yaml_is_the_config_map_that_the_pod_mounts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = (pool(), quota(), pod("a", mounts=MOUNTED))
    _, plain, _ = render(tmp_path, capsys, "--pod", "a", texts=texts)
    code, out, err = render(tmp_path, capsys, "--pod", "a", "-o", "yaml", texts=texts)
    stored = yaml.safe_load(out)
    assert (code, err, stored["kind"], stored["metadata"]["name"]) == (0, "", "ConfigMap", MOUNTED)
    assert json.loads(stored["data"]["config.json"]).items() >= json.loads(plain).items()


def test_a_pod_of_two_pools_belongs_to_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = (pool("second"), pool("first"), quota("PerReplica", "first"), pod("a"))
    code, out, _ = render(tmp_path, capsys, "--pod", "a", texts=texts)
    assert (code, json.loads(out)["pool"]["name"]) == (0, "first")


@pytest.mark.parametrize(
    ("texts", "options", "code", "said"),
    [
        pytest.param(
            ("# nothing\n",),
            (),
            2,
            "kvquota: no Pod a of namespace default is among the manifests, and no ModelPool of it either: give"
            " --manifests a folder that has one",
            id="no pool",
        ),
        pytest.param(
            (pool("one"), pool("two")),
            (),
            2,
            "kvquota: no Pod a of namespace default is among the manifests: for one that is not there yet give --pool"
            " one of one, two",
            id="a new pod of several pools",
        ),
        pytest.param(
            (pool(), pod("a", app="y")),
            (),
            2,
            "kvquota: 1.yaml:1: Pod default/a: no ModelPool selects it (pool in 0.yaml:1): give it the labels of"
            " spec.selector of one",
            id="a pod that no pool selects",
        ),
        pytest.param(
            (pod("a"),),
            (),
            2,
            "kvquota: 0.yaml:1: Pod default/a: no ModelPool selects it (there is none): give it the labels of"
            " spec.selector of one",
            id="a pod where there is no pool",
        ),
        pytest.param(
            (pool(), pod("a", inject=False)),
            (),
            2,
            "kvquota: 1.yaml:1: Pod default/a: it gets nothing, since it does not ask for the sidecar: label it"
            ' kvquota.dev/inject: "true", with the quotes',
            id="a pod that does not ask for the sidecar",
        ),
        pytest.param(
            (pool(), pool("other", "z"), pod("a")),
            ("--pool", "other"),
            2,
            "kvquota: 2.yaml:1: Pod default/a: it belongs to ModelPool pool in 0.yaml:1, not to other: leave --pool"
            " out",
            id="a pod of another pool",
        ),
        pytest.param(
            (pool("one"), pool("two"), pod("a")),
            ("--pool", "nope"),
            2,
            "kvquota: there is no ModelPool nope of namespace default among the manifests: give --pool one of one, two",
            id="a pool that is not there",
        ),
        pytest.param(
            (pool("one").replace("name: one", "name: one, namespace: default"),),
            ("-n", "other", "--pool", "one"),
            2,
            "kvquota: there is no ModelPool one of namespace other among the manifests: ModelPools are in default, so"
            " give --namespace one of these",
            id="a pool that is in another namespace",
        ),
        pytest.param(
            (pool("one").replace("name: one", "name: one, namespace: default"),),
            ("-n", "other"),
            2,
            "kvquota: no Pod a of namespace other is among the manifests, and no ModelPool of it either: ModelPools are"
            " in default, so give --namespace one of these",
            id="a namespace without pools",
        ),
        pytest.param(
            (pool(), pod("a").replace("spec:", "spec: text\nold:")),
            (),
            2,
            "kvquota: 1.yaml:8: error: Pod default/a: spec: must be a mapping, it is 'text'; no API server takes this"
            " Pod",
            id="a pod that is none",
        ),
    ],
)
def test_what_a_pod_would_not_get(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    texts: tuple[str, ...],
    options: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    assert render(tmp_path, capsys, "--pod", "a", *options, texts=texts) == (code, "", said + "\n")


def test_a_pool_without_a_plan_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = render(tmp_path, capsys, "--pod", "a", texts=(quota(), pool(memory="1Gi")))
    assert (code, out) == (3, "")
    first, last = err.splitlines()
    assert first.startswith("1.yaml:1: error: ModelPool default/pool: ")
    assert last == (
        "kvquota: 1.yaml:1: ModelPool default/pool: no pod gets anything until what is said of it above is mended"
    )


def test_what_is_wrong_beside_it_is_said_and_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = (pool(), quota() + quota().replace("name: search", "name: twin"))
    code, out, err = render(tmp_path, capsys, "--pod", "a", texts=texts)
    assert (code, hard(out)) == (1, 4000)
    assert err.startswith("1.yaml:")
    assert "already has a share" in err


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "--manifests", str(tmp_path / "gone"), "--pod", "a"]) == 2
    assert "name a manifest file or a folder of them" in capsys.readouterr().err
