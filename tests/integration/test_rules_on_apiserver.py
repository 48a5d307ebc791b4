"""The two judges of an object, held against each other: the API server with our CRDs, and the checks in Python."""

from __future__ import annotations

import http.client
import json
import re
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from contract_amounts import AS_KUBERNETES
from contract_cluster import said, with_crds
from contract_objects import Json, changed, quota
from contract_random import random_object
from contract_shapes import misshapen
from kvquota_api.amounts import Bytes, format_quantity
from kvquota_api.validation import validate
from testcluster.apiserver import ApiServer

pytestmark = pytest.mark.apiserver

AT_A_PROBLEM = r", (?=spec\S*: Invalid value: )"

AT_ONCE = 100
"""Objects that one kubectl is given: enough that its start does not count."""


@pytest.fixture(scope="module")
def api(apiserver: ApiServer) -> Iterator[ApiServer]:
    with with_crds(apiserver, "rules") as ready:
        yield ready


CREATE = ("create", "--dry-run=server", "-o", "name")


def verdicts(api: ApiServer, objects: list[Json]) -> dict[str, frozenset[str]]:
    """Name -> the API server's problems with it, each "path: message"; nothing is kept. Names differ."""
    refused = {
        name: frozenset(problem.replace(" Invalid value:", "", 1) for problem in re.split(AT_A_PROBLEM, problems))
        for name, problems in re.findall(
            r'"([^"]+)" is invalid: \[?(.*?)\]?$', said(api, *CREATE, given=joined(objects)), re.M
        )
    }
    others = [raw for raw in objects if raw["metadata"]["name"] not in refused]
    accepted = api.kubectl(*CREATE, "-f", "-", input=joined(others)).splitlines()
    return refused | {line.rpartition("/")[2]: frozenset() for line in accepted}


def joined(objects: list[Json]) -> str:
    return "\n---\n".join(map(json.dumps, objects))


@pytest.mark.parametrize("batch", range(5))
def test_random_objects_are_judged_alike_and_in_the_same_words(api: ApiServer, batch: int) -> None:
    objects = [random_object(seed) for seed in range(batch * AT_ONCE, (batch + 1) * AT_ONCE)]

    here = {raw["metadata"]["name"]: frozenset(map(str, validate(raw))) for raw in objects}

    assert verdicts(api, objects) == here
    assert frozenset() in here.values()
    assert len({problem for problems in here.values() for problem in problems}) > 20


COMPARED = [(text, size) for text, size in AS_KUBERNETES if 0 < size < 2**63 - 1]


def test_a_quantity_is_as_many_bytes_as_the_api_server_takes_it_for(api: ApiServer) -> None:
    """Not more than `size` bytes, and more than one less: whatever is written, this is its size rounded up."""

    def compared(text: str, size: int, name: str) -> Json:
        return changed(quota(kv={"soft": {"bytes": text}, "hard": {"bytes": size}}), {"metadata.name": name})

    exact = {f"within-{place}": compared(text, size, f"within-{place}") for place, (text, size) in enumerate(COMPARED)}
    below = {f"more-{place}": compared(text, size - 1, f"more-{place}") for place, (text, size) in enumerate(COMPARED)}

    found = verdicts(api, [*exact.values(), *below.values()])

    refusal = frozenset({"spec.kv: soft must not be more than hard: lower soft or raise hard"})
    assert found == dict.fromkeys(exact, frozenset()) | dict.fromkeys(below, refusal)


SIZES_KI = (1, 512, 1023, 1024, 1536, 1_177 * 1024, 15_316 * 1024, 36 * 2**20, 36 * 2**20 + 1, 3 * 2**30, 2**40)


def test_a_size_is_written_as_the_api_server_writes_it(api: ApiServer) -> None:
    containers = [
        {"name": f"c{size}", "image": "none", "resources": {"requests": {"memory": f"{size}Ki"}}} for size in SIZES_KI
    ]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "sizes"}, "spec": {"containers": containers}}

    created = json.loads(api.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(pod)))

    written = [each["resources"]["requests"]["memory"] for each in created["spec"]["containers"]]
    assert [format_quantity(Bytes(size * 1024)) for size in SIZES_KI] == written


def kept_by(api: ApiServer, objects: list[Json]) -> list[bool]:
    """Whether the API server would keep each object, as a client in strict mode sends it; nothing is kept."""
    trust = ssl.create_default_context(cafile=str(api.ca))
    connection = http.client.HTTPSConnection(urlsplit(api.url).netloc, context=trust, timeout=60)
    headers = {"Authorization": f"Bearer {api.token}", "Content-Type": "application/json"}
    answers = []
    for raw in objects:
        path = f"/apis/kvquota.dev/v1alpha1/namespaces/default/{raw['kind'].lower()}s?dryRun=All&fieldValidation=Strict"
        connection.request("POST", path, json.dumps(raw), headers)
        response = connection.getresponse()
        response.read()
        answers.append(response.status == http.HTTPStatus.CREATED)
    connection.close()
    return answers


def as_sent(value: Any) -> Any:
    """A number without a fraction is sent as an integer, as Go's clients do."""
    if isinstance(value, dict):
        return {key: as_sent(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_sent(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@pytest.mark.parametrize("batch", range(8))
def test_objects_out_of_shape_are_judged_alike(api: ApiServer, batch: int) -> None:
    objects = [misshapen(seed) for seed in range(batch * AT_ONCE, (batch + 1) * AT_ONCE)]
    here = [validate(raw) == [] for raw in objects]

    there = kept_by(api, [as_sent(raw) for raw in objects])

    assert [raw for raw, one, other in zip(objects, here, there, strict=True) if one != other] == []
    assert {True, False} == set(here)
