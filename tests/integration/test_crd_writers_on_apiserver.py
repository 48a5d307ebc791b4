"""What becomes of an object that several clients write, and of a field that none should have written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract_cluster import NAMES, said, with_crds
from contract_objects import Json, changed, pool, quota
from kvquota_cli.__main__ import main
from testcluster.apiserver import ApiServer
from testcluster.programs import ProgramError

pytestmark = pytest.mark.apiserver

NAMESPACE = "writers"


@pytest.fixture(scope="module")
def api(apiserver: ApiServer) -> Iterator[ApiServer]:
    with with_crds(apiserver, NAMESPACE) as ready:
        yield ready


def own(name: str, raw: Json) -> Json:
    return changed(raw, {"metadata.name": name, "metadata.namespace": NAMESPACE})


def stored(api: ApiServer, raw: Json) -> Any:
    """The spec as the API server has it."""
    text = api.kubectl("get", NAMES[raw["kind"]], raw["metadata"]["name"], "-n", NAMESPACE, "-o", "json")
    return json.loads(text)["spec"]


def applied(api: ApiServer, manager: str, raw: Json, *more: str) -> Any:
    """The spec after this manager has applied `raw` on the server's side."""
    arguments = ("apply", "--server-side", f"--field-manager={manager}", *more)
    api.kubectl(*arguments, "-f", "-", input=json.dumps(raw))
    return stored(api, raw)


def test_a_share_in_another_unit_replaces_the_share(api: ApiServer) -> None:
    applied(api, "team", own("unit", quota(kv={"hard": {"percent": 50}})))

    after = applied(api, "platform", own("unit", quota(kv={"hard": {"tokens": 1000}})), "--force-conflicts")

    assert after["kv"] == {"hard": {"tokens": 1000}}


def test_a_kv_pool_in_another_unit_replaces_the_default(api: ApiServer) -> None:
    assert applied(api, "team", own("pool", pool()))["memory"]["kvPool"] == {"percent": 30}

    after = applied(api, "team", own("pool", pool(memory={"kvPool": {"remainder": {}}})))

    assert after["memory"]["kvPool"] == {"remainder": {}}


def test_another_reference_replaces_the_reference(api: ApiServer) -> None:
    config = {"configMapRef": {"name": "configs", "key": "one.json"}}
    applied(api, "team", own("reference", pool(model__config=config)))

    after = applied(
        api, "platform", own("reference", pool(model__config={"preset": "llama-3.1-8b"})), "--force-conflicts"
    )

    assert after["model"]["config"] == {"preset": "llama-3.1-8b"}


def test_tiers_of_two_writers_stand_side_by_side(api: ApiServer) -> None:
    applied(api, "team", own("tiers", pool(tiers=[{"name": "gold", "priority": 100}])))
    only_tiers = changed(own("tiers", pool()), {"spec": {"tiers": [{"name": "free", "priority": 1}]}})

    after = applied(api, "platform", only_tiers)

    assert after["tiers"] == [{"name": "gold", "priority": 100}, {"name": "free", "priority": 1}]


MISSPELT = {
    "spec.modelPoolref": quota(modelPoolref={"name": "llama"}),
    "spec.kv.hrad": quota(kv={"hrad": {"percent": 60}}),
    "spec.identity.apiKeys[0].secretref": quota(
        identity={"apiKeys": [{"secretRef": {"name": "a", "key": "b"}, "secretref": {"name": "a"}}]}
    ),
    "spec.memory.kvpool": pool(memory={"kvpool": {"percent": 60}}),
    "spec.tiers[0].prio": pool(tiers=[{"name": "gold", "prio": 3}]),
    "spec.sidecar.identity.jwt.tenantclaim": pool(
        sidecar__identity={
            "jwt": {
                "issuer": "https://issuer.example",
                "audience": "kvquota",
                "keysRef": {"secret": {"name": "jwks", "key": "jwks.json"}},
                "tenantclaim": "team",
            }
        }
    ),
    "spec.engine.speculation.draftlayers": pool(engine__speculation={"draftlayers": 1}),
}
"""Path of the slip -> the object that has it."""


@pytest.mark.parametrize(("path", "raw"), MISSPELT.items(), ids=MISSPELT)
def test_apply_fails_and_names_a_misspelt_field(api: ApiServer, path: str, raw: Json) -> None:
    assert f'unknown field "{path}"' in said(api, "apply", "--dry-run=server", given=json.dumps(raw))


@pytest.mark.parametrize(("path", "raw"), MISSPELT.items(), ids=MISSPELT)
def test_check_finds_what_a_client_that_does_not_validate_loses_silently(
    api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, raw: Json
) -> None:
    lost = path.rpartition(".")[2]
    file = tmp_path / "objects.json"
    file.write_text(json.dumps(own("pruned", raw)))

    api.kubectl("apply", "--validate=ignore", "-f", str(file))
    assert f'"{lost}"' not in json.dumps(stored(api, own("pruned", raw)))

    assert main(["check", str(file), "-o", "json"]) == 1
    (finding,) = [each for each in json.loads(capsys.readouterr().out)["findings"] if each["severity"] == "error"]
    assert (finding["field"], finding["message"].split(";")[0]) == (path, "is not a field here")


def test_a_writer_of_the_status_changes_neither_spec_nor_generation(api: ApiServer) -> None:
    raw = own("status", quota(priority=1))
    applied(api, "team", raw)
    change = json.dumps({"spec": {"priority": 2}, "status": {"inFlight": 3}})

    text = api.kubectl(
        "patch", "tq", "status", "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", change, "-o", "json"
    )

    after = json.loads(text)
    assert (after["spec"]["priority"], after["status"], after["metadata"]["generation"]) == (1, {"inFlight": 3}, 1)


def test_a_writer_of_the_spec_changes_the_generation_and_not_the_status(api: ApiServer) -> None:
    raw = own("generation", quota(priority=1))
    applied(api, "team", raw)

    api.kubectl(
        "apply",
        "--server-side",
        "--field-manager=team",
        "-f",
        "-",
        input=json.dumps({**changed(raw, {"spec.priority": 2}), "status": {"inFlight": 7}}),
    )

    after = json.loads(api.kubectl("get", "tq", "generation", "-n", NAMESPACE, "-o", "json"))
    assert (after["spec"]["priority"], "status" in after, after["metadata"]["generation"]) == (2, False, 2)


def test_what_is_out_of_bounds_in_a_status_is_refused(api: ApiServer) -> None:
    applied(api, "team", own("bounds", quota()))

    with pytest.raises(ProgramError, match=r"status\.inFlight.*greater than or equal to 0"):
        api.kubectl(
            "patch", "tq", "bounds", "-n", NAMESPACE, "--subresource=status", "--type=merge",
            "-p", json.dumps({"status": {"inFlight": -1}}),
        )  # fmt: skip
