"""Two versions side by side: a sidecar under a newer operator, and an operator among older and newer sidecars."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contract_versions import raw, signed
from kvquota_api import pod_config, usage
from kvquota_api.pod_config import PodConfig
from kvquota_api.usage import SyncRequest, UsageReport
from operator_fakes import FakePod
from operator_world import World, operator, quota, until, until_true
from sidecar_program import AUTHORIZED, Program, engine, files_of, mounted, replaced, send, start
from sidecar_rig import SEARCH, TOKEN, chat, completion, config, identity, share
from testcluster.processes import Keeper

NEW = "config.tenants[].requestsPerMinute"


def of_a_newer_version(wanted: PodConfig, **changes: Any) -> bytes:
    """`wanted` with a limit for each tenant that this version does not know, and other changes."""
    document = {**json.loads(pod_config.encode(wanted)), **changes}
    for tenant in document["tenants"]:
        tenant["requestsPerMinute"] = 600
    return signed(document)


# A sidecar as a process, whose operator is newer.


def report(sidecar: Program, carried: bytes | None = None) -> UsageReport:
    """The sidecar's answer to a sync with this config, or with none."""
    request = {"version": 1, "configDigest": "", "identityDigest": ""}
    body = json.dumps({**request, **({} if carried is None else {"config": json.loads(carried)})}).encode()
    status, answer = send(f"{sidecar.admin_url}{usage.SYNC_PATH}", body, Authorization=f"Bearer {TOKEN}")
    assert status == 200, answer
    return usage.decode_report(answer)


def asked(sidecar: Program, body: bytes) -> tuple[int, str]:
    """Status and code of the answer to a request of the tenant SEARCH."""
    path = "chat/completions" if b"messages" in body else "completions"
    status, answer = send(f"{sidecar.url}/v1/{path}", body, **AUTHORIZED)
    return status, json.loads(answer).get("error", {}).get("code", "")


def test_a_sidecar_enforces_what_it_knows_of_a_newer_config_and_names_the_rest(keeper: Keeper, tmp_path: Path) -> None:
    narrow = share(SEARCH, soft=0, hard=8)
    folder = mounted(tmp_path)
    (folder / "config.json").write_bytes(of_a_newer_version(config(narrow, generation=3)))
    newer_identity = {**json.loads(pod_config.encode(identity())), "mutualTls": {"issuers": []}}
    (folder / "identity" / "identity.json").write_bytes(signed(newer_identity))
    sidecar = start(keeper, folder, "--engine", engine(keeper, folder), *files_of(folder))

    assert asked(sidecar, chat()) == (200, "")
    assert asked(sidecar, completion(9)) == (400, "request_exceeds_kv_quota")
    in_force = report(sidecar).in_force
    assert (in_force.generation, in_force.source) == (3, "File")
    assert in_force.unknown_fields == (NEW, "identity.mutualTls")
    told = [line["fields"] for line in sidecar.events("partly_understood")]
    assert told[-1] == f"{NEW}, identity.mutualTls"


def test_a_newer_config_that_came_by_the_channel_outlives_the_child_that_got_it(keeper: Keeper, tmp_path: Path) -> None:
    folder = mounted(tmp_path)
    sidecar = start(keeper, folder, "--engine", engine(keeper, folder), *files_of(folder))
    sent = of_a_newer_version(config(share(SEARCH, soft=0, hard=8), generation=3))
    before = report(sidecar, sent).in_force
    assert (before.generation, before.unknown_fields) == (3, (NEW,))

    replaced(sidecar)

    after = report(sidecar)
    assert (after.in_force, after.rejected) == (before, None)
    assert asked(sidecar, completion(9)) == (400, "request_exceeds_kv_quota")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"version": 2}, "Invalid enum value 2 - at `$.version`", id="a version"),
        pytest.param({"enforcement": "Warn"}, "Invalid enum value 'Warn' - at `$.enforcement`", id="a word"),
    ],
)
def test_a_newer_config_that_must_not_be_read_past_is_refused_whole(
    keeper: Keeper, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    folder = mounted(tmp_path, config(share(SEARCH, soft=0, hard=8)))
    sidecar = start(keeper, folder, "--engine", engine(keeper, folder), *files_of(folder))
    got = report(sidecar, of_a_newer_version(config(generation=3), **changes))
    assert got.rejected is not None
    assert (got.rejected.reason, says in got.rejected.message) == ("InvalidConfig", True)
    assert (got.in_force.generation, got.in_force.unknown_fields) == (1, ())
    assert asked(sidecar, completion(9)) == (400, "request_exceeds_kv_quota")


# An operator, whose sidecars and whose predecessor are of other versions.


@dataclass
class OtherVersion(FakePod):
    """A sidecar that reports as one of another version does: `version` is a folder of tests/data/versions."""

    version: str = ""
    tenant: str = ""
    unknown: tuple[str, ...] = ()

    def answer(self, request: SyncRequest) -> Any:
        ours = json.loads(usage.encode(super().answer(request)))
        known = ("generation", "configDigest", "identityDigest", "source")
        in_force = {name: ours["inForce"][name] for name in known}
        if self.unknown:
            in_force["unknownFields"] = list(self.unknown)
        theirs = raw(self.version, "report")
        theirs.pop("rejected", None)
        theirs["tenants"][0]["id"] = self.tenant
        return {**theirs, "sequence": ours["sequence"], "epoch": ours["epoch"], "inForce": in_force}


async def with_one_pod(world: World, version: str, *unknown: str) -> OtherVersion:
    """A pool with one tenant and one pod, whose sidecar is of this version and does not know these fields."""
    await world.add_pool()
    await world.apply(quota("search", hard=50))
    fake = OtherVersion(version=version, tenant=f"{world.namespace}/search", unknown=unknown)
    await world.add_pod("llama-0", fake=fake)
    return fake


async def governed(world: World) -> tuple[str, str]:
    return await world.condition("modelpool", "llama", "PodsGoverned")


@pytest.mark.apiserver
@pytest.mark.parametrize("version", ["older", "0.1.0", "newer"])
async def test_a_sidecar_of_another_version_gets_its_config_and_its_numbers_are_shown(
    world: World, version: str
) -> None:
    fake = await with_one_pod(world, version)
    async with operator(world):
        status = await until(
            lambda: world.get("tenantquota", "search"),
            lambda each: each.get("status", {}).get("inFlight") == 2,
            what="the sidecar's numbers are in the status",
        )
        assert await governed(world) == ("True", "AllGoverned")
    assert status["status"]["reserved"]["blocks"] == 431
    assert (fake.in_force.generation > 0, len(fake.in_force.config_digest)) == (True, 64)


@pytest.mark.apiserver
async def test_what_an_older_sidecar_does_not_enforce_is_told_with_pod_and_field(world: World) -> None:
    fake = await with_one_pod(world, "0.1.0", NEW, "config.plan")

    async def is_governed() -> tuple[str, str]:
        return await governed(world)

    async with operator(world):
        await until(
            is_governed, lambda each: each == ("False", "ConfigPartlyUnderstood"), what="what is not enforced is told"
        )
        told = " ".join((await world.kubectl("describe", "kvmp", "llama")).split())
        events = await until(
            lambda: world.list("events", "--field-selector=reason=ConfigPartlyUnderstood"), bool, what="the event"
        )
        columns = await world.kubectl("get", "kvmp", "llama", "--no-headers")
        fake.unknown = ()  # it was rolled out again
        await until(is_governed, lambda each: each == ("True", "AllGoverned"), what="all is enforced again")
    assert f"not known to the sidecar of pod llama-0, and not enforced there: {NEW}." in told
    assert [each["type"] for each in events] == ["Warning"]
    assert "Faulty" in columns.split()


@pytest.mark.apiserver
async def test_an_older_operator_takes_over_the_copies_that_a_newer_one_wrote(world: World) -> None:
    await with_one_pod(world, "0.1.0")
    sidecar = world.sidecars["llama-0"]

    def taken() -> int:
        return sidecar.config.generation if sidecar.config else 0

    async with operator(world):
        await until_true(lambda: taken() > 0, what="the pod has a config")
    [stored] = await world.list("configmaps", "-l", "kvquota.dev/pool")
    newer = of_a_newer_version(pod_config.decode_config(stored["data"]["config.json"]), generation=7)
    await world.patch("configmap", stored["metadata"]["name"], {"data": {"config.json": newer.decode()}})
    sidecar.config = pod_config.decode_config(newer)
    sidecar.fake.in_force = msgspec.structs.replace(
        sidecar.fake.in_force, generation=7, config_digest=sidecar.config.digest
    )
    async with operator(world):
        await until_true(lambda: taken() == 8, what="the older operator's config follows the newer one's")
        copy = (await world.config_maps())["llama-0"]
    assert pod_config.unknown_fields(copy) == ()
    assert (copy, sidecar.hard("search")) == (sidecar.config, copy.tenants[0].hard_blocks)
