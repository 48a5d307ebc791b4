"""What kubectl shows of fields that nothing acts upon yet, by the chart's policies on a real API server."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from contract_cluster import with_crds
from contract_inert import ASKING
from contract_objects import Json, pool
from kvquota_api.inert import INERT
from testcluster.apiserver import ApiServer
from testcluster.helm import Helm

pytestmark = pytest.mark.apiserver

CHART = Path(__file__).parents[2] / "charts" / "kvquota"
SERVED, OTHER = "warned", "unwarned"
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def api(apiserver: ApiServer, helm: Helm) -> Iterator[ApiServer]:
    """An API server with the CRDs and the chart's policies, once these are in force."""
    with with_crds(apiserver, SERVED) as ready:
        ready.create_namespace(OTHER)
        text = helm("template", "kvquota", CHART, "--namespace", "home", "--set", f"namespaces={{{SERVED}}}")
        found = [each for each in yaml.safe_load_all(text) if each and "AdmissionPolicy" in each["kind"]]
        policies = yaml.safe_dump_all(found)
        ready.kubectl("apply", "-f", "-", input=policies)
        deadline = time.monotonic() + DEADLINE_S
        while len(warnings(ready, [raw for raw, _ in ASKING.values()])) < sum(map(len, INERT.values())):
            assert time.monotonic() < deadline, "the policies are not in force"
        yield ready
        ready.kubectl("delete", "-f", "-", input=policies)


def warnings(api: ApiServer, objects: list[Json], namespace: str = SERVED) -> list[str]:
    """What kubectl prints beside its answer when it creates these, each line once; nothing is kept."""
    given = "\n---\n".join(json.dumps({**raw, "metadata": {"name": raw["metadata"]["name"]}}) for raw in objects)
    kubectl = [api.access.kubectl_path, "--kubeconfig", api.kubeconfig, "--namespace", namespace]
    command = [*kubectl, "create", "--dry-run=server", "-f", "-"]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    return done.stderr.splitlines()


@pytest.mark.parametrize(("raw", "paths"), ASKING.values(), ids=ASKING)
def test_who_applies_what_nothing_acts_upon_is_told_which_field_and_what_happens(
    api: ApiServer, raw: Json, paths: list[str]
) -> None:
    said = {field.path: field.sentence for fields in INERT.values() for field in fields}
    told = warnings(api, [raw])
    assert [line.partition(": ")[0] for line in told] == ["Warning"] * len(paths)
    assert all(line.endswith(f": {said[path]}") for line, path in zip(told, paths, strict=True))


def test_nobody_is_told_where_no_operator_serves(api: ApiServer) -> None:
    assert warnings(api, [pool(engine__plugin="Measure")], OTHER) == []


def test_an_edit_warns_too_and_a_status_does_not(api: ApiServer) -> None:
    raw = pool(engine__plugin="Measure")
    body = json.dumps({**raw, "metadata": {"name": "edited"}})
    api.kubectl("--namespace", SERVED, "create", "-f", "-", input=body)
    kubectl = [
        api.access.kubectl_path,
        "--kubeconfig",
        api.kubeconfig,
        "--namespace",
        SERVED,
        "patch",
        "kvmp",
        "edited",
    ]

    def told(patch: Json, *more: str) -> int:
        command = [*kubectl, "--type=merge", "-p", json.dumps(patch), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stderr.count("Warning: ")

    assert told({"spec": {"memory": {"safetyMarginPercent": 9}}}) == 1
    assert told({"status": {"state": "Ready"}}, "--subresource=status") == 0
