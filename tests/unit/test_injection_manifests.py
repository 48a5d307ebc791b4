"""Deployments as other projects make them, put under quota: the whole pod that comes out."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvquota_api.validation import parse_model_pool
from kvquota_operator.injection.asking import labels_of, selecting
from kvquota_operator.injection.injecting import inject
from kvquota_operator.injection.outcomes import Allowed, SidecarImage
from kvquota_operator.injection.planned import target_of
from kvquota_operator.reading.objects import read_pool

MANIFESTS = Path(__file__).parents[1] / "data" / "manifests"
IMAGE = SidecarImage("kvquota/sidecar:0.1.0")
CONFIG_MAP = "kvq-00112233445566778899aabbccddeeff"
NAMES = ["plain-vllm", "production-stack", "kserve", "kserve-tls", "llmkube-vllm", "llmkube-llamacpp"]


def read(name: str) -> Any:
    return yaml.safe_load((MANIFESTS / f"{name}.yaml").read_text(encoding="utf-8"))


def pool_of(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "kvquota.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {"name": name, "namespace": "inference"},
        "spec": read("pools")[name],
    }


def template_of(name: str) -> dict[str, Any]:
    """The pod as a ReplicaSet sends it: without a name."""
    template: dict[str, Any] = read(name)["spec"]["template"]
    return {**template, "metadata": {**template["metadata"], "generateName": f"{name}-"}}


def injected(name: str, pod: dict[str, Any], config_map: str = CONFIG_MAP) -> Allowed:
    outcome = inject(pod, target_of(parse_model_pool(pool_of(name)), None, ()), IMAGE, config_map)
    assert isinstance(outcome, Allowed), outcome
    return outcome


@pytest.mark.parametrize("name", NAMES)
def test_the_pod_comes_out_as_written_down(name: str) -> None:
    outcome = injected(name, template_of(name))
    assert outcome == Allowed(read(f"injected/{name}"))


@pytest.mark.parametrize("name", NAMES)
def test_injecting_again_changes_nothing(name: str) -> None:
    once = injected(name, template_of(name))
    assert injected(name, dict(once.pod), "kvq-" + "f" * 32) == once


@pytest.mark.parametrize("name", NAMES)
def test_the_pod_that_came_in_is_as_it_was(name: str) -> None:
    pod = template_of(name)
    injected(name, pod)
    assert pod == template_of(name)


@pytest.mark.parametrize("name", NAMES)
def test_its_own_pool_alone_selects_it(name: str) -> None:
    pools = [read_pool(pool_of(each)) for each in NAMES if {each, name} != {"plain-vllm", "llmkube-vllm"}]
    assert [each.key.name for each in selecting(labels_of(template_of(name)), pools)] == [name]
