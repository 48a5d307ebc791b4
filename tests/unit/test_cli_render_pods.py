"""`kvquota render` and Pods that are not as they should be: what is said of them, and what others get all the same."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvquota_api.pod_config import decode_config
from kvquota_cli.__main__ import main

OBJECTS = """\
apiVersion: kvquota.dev/v1alpha1
kind: ModelPool
metadata: {name: pool}
spec:
  selector: {matchLabels: {app: x}}
  model: {name: m, config: {preset: llama-3.2-1b}, maxModelLen: 4096}
  engine: {type: vLLM, container: vllm}
  gpu: {memory: 24Gi}
  memory: {kvPool: {percent: 50}}
---
apiVersion: kvquota.dev/v1alpha1
kind: TenantQuota
metadata: {name: search}
spec: {tenant: search, modelPoolRef: {name: pool}, scope: Pool, kv: {hard: {tokens: 64000}}, maxContextTokens: 1600}
"""
ENGINE = {"name": "vllm", "args": ["--model", "m"]}


def pod(name: str, *, label: object = "true", plan: str | None = None, **spec: Any) -> str:
    meta: dict[str, Any] = {"name": name, "labels": {"app": "x", "kvquota.dev/inject": label}}
    if plan is not None:
        meta["annotations"] = {"kvquota.dev/plan": plan}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [ENGINE], **spec}}
    return yaml.safe_dump(body, sort_keys=False)


def render(folder: Path, capsys: pytest.CaptureFixture[str], *pods: str) -> tuple[int, str, str]:
    """Exit code of `--pod a`, and what was printed on standard output and as errors, without the folder's name."""
    for place, text in enumerate((OBJECTS, *pods)):
        (folder / f"{place}.yaml").write_text(text)
    code = main(["render", "--manifests", str(folder), "--pod", "a"])
    printed = capsys.readouterr()
    return code, printed.out, printed.err.replace(f"{folder}/", "")


def test_a_pod_of_another_plan_is_shown_with_that_of_the_manifests_and_that_is_said(tmp_path, capsys):
    code, shown, _ = render(tmp_path, capsys, pod("a"))
    plan = decode_config(shown).plan
    assert (code, render(tmp_path, capsys, pod("a", plan=plan))) == (0, (0, shown, ""))
    code, again, said = render(tmp_path, capsys, pod("a", plan="0" * 16))
    assert (code, again) == (1, shown)
    assert said == (
        "1.yaml:1: error: Pod default/a: the annotation kvquota.dev/plan names the plan 0000000000000000, which the pod"
        " keeps;"
        f" the pool of these manifests has the plan {plan}, and shown is what a new pod would get\n"
    )


REFUSED = [
    pytest.param({"hostNetwork": True}, "the pod uses the node's network (hostNetwork)", id="the node's network"),
    pytest.param(
        {"containers": [{**ENGINE, "name": "other"}]}, "the pod has no container vllm, it has other", id="no engine"
    ),
    pytest.param(
        {"containers": [{"name": "vllm"}]}, "container vllm has neither command nor args", id="neither command nor args"
    ),
    pytest.param(
        {"containers": [{"name": "vllm", "command": ["sh", "-c", "vllm serve m"]}]},
        "container vllm runs a string in a shell",
        id="a string of a shell",
    ),
]


@pytest.mark.parametrize(("spec", "why"), REFUSED)
def test_a_pod_that_the_webhook_refuses_gets_its_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: dict[str, Any], why: str
) -> None:
    code, out, err = render(tmp_path, capsys, pod("a", **spec))
    assert (code, out) == (2, "")
    assert err.startswith(f"kvquota: 1.yaml:1: Pod default/a: the webhook refuses it: {why}")


@pytest.mark.parametrize(("spec", "why"), REFUSED)
def test_a_pod_beside_it_that_the_webhook_refuses_is_said_and_has_no_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: dict[str, Any], why: str
) -> None:
    code, out, err = render(tmp_path, capsys, pod("a"), pod("b", **spec))
    assert (code, [each.hard_blocks for each in decode_config(out).tenants]) == (1, [4000])
    assert err.startswith(f"2.yaml:1: error: Pod default/b: the webhook refuses it, so it has no part: {why}")


def test_a_pod_that_has_the_sidecar_is_not_asked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = render(tmp_path, capsys, pod("a", hostNetwork=True, initContainers=[{"name": "kvquota"}]))
    assert (code, err) == (0, "")


BROKEN = [
    pytest.param({"containers": []}, "9: error: {}: spec.containers: must have at least 1, and is empty", id="empty"),
    pytest.param({"containers": None}, "9: error: {}: spec.containers: is missing", id="missing"),
    pytest.param({"containers": 5}, "9: error: {}: spec.containers: must be a list, it is 5", id="no list"),
    pytest.param(
        {"containers": [5]}, "10: error: {}: spec.containers[0]: must be a mapping, it is 5", id="no container"
    ),
    pytest.param(
        {"containers": [{**ENGINE, "args": ["--port", 8000]}]},
        '13: error: {}: spec.containers[0].args[1]: must be text, and 8000 is none: write "8000" with the quotes',
        id="a number as an argument",
    ),
    pytest.param(
        {"containers": [{**ENGINE, "ports": [{"name": "http"}]}]},
        "15: error: {}: spec.containers[0].ports[0].containerPort: is missing",
        id="a port without a number",
    ),
    pytest.param(
        {"hostNetwork": "yes"}, "14: error: {}: spec.hostNetwork: must be true or false, it is 'yes'", id="no switch"
    ),
    pytest.param(
        {"label": True},
        "7: error: {}: metadata.labels['kvquota.dev/inject']: must be text, and true is none: write \"true\" with the"
        " quotes",
        id="a label without quotes",
    ),
]


@pytest.mark.parametrize(("changes", "said"), BROKEN)
def test_a_broken_field_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    found = render(tmp_path, capsys, pod("a", **changes))
    assert found == (2, "", f"kvquota: 1.yaml:{said.format('Pod default/a')}; no API server takes this Pod\n")


@pytest.mark.parametrize(("changes", "said"), BROKEN)
def test_a_broken_pod_does_not_stop_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    code, out, err = render(tmp_path, capsys, pod("a"), pod("b", **changes))
    assert (code, err) == (1, f"2.yaml:{said.format('Pod default/b')}\n")
    assert [each.hard_blocks for each in decode_config(out).tenants] == [4000]


def test_null_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = render(
        tmp_path, capsys, pod("a", hostNetwork=None, initContainers=None, terminationGracePeriodSeconds=None)
    )
    assert (code, err) == (0, "")


def test_a_pod_of_an_invalid_pool_is_told_to_mend_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "0.yaml").write_text(OBJECTS.replace("percent: 50", "percent: 500"))
    (tmp_path / "1.yaml").write_text(pod("a"))
    assert main(["render", "--manifests", str(tmp_path), "--pod", "a"]) == 3
    first, *_, last = capsys.readouterr().err.replace(f"{tmp_path}/", "").splitlines()
    assert first.startswith("0.yaml:9: error: ModelPool default/pool: spec.memory.kvPool.percent: ")
    assert last.endswith("ModelPool default/pool: no pod gets anything until what is said of it above is mended")
