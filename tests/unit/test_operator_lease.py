"""The Lease as the API server has it: what is read from it, what is written into it, and what is kept."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest

import virtual_time
from kvquota_operator.adapters.lease import KubeLease, LeaseLocationError, identity, own_namespace
from kvquota_operator.leading import NOBODY, Record
from kvquota_operator.ports import ClusterError, ConflictError, ForbiddenError, VanishedError

Json = dict[str, Any]
COLLECTION = "/apis/coordination.k8s.io/v1/namespaces/home/leases"
NOW = r"2026-11-01T12:16:40\.\d{6}Z"


class FakeApi:
    """One object. `refusal`: raised by everything."""

    def __init__(self, body: Json | None = None) -> None:
        self.body = body
        self.refusal: ClusterError | None = None

    async def get(self, path: str) -> Json:
        self._check(path, f"{COLLECTION}/kvquota")
        if self.body is None:
            raise VanishedError("404")
        return copy.deepcopy(self.body)

    async def create(self, path: str, body: Json) -> Json:
        self._check(path, COLLECTION)
        if self.body is not None:
            raise ConflictError("exists")
        return self._store(body, version="1")

    async def replace(self, path: str, body: Json) -> Json:
        self._check(path, f"{COLLECTION}/kvquota")
        if self.body is None or self.body["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ConflictError("changed")
        return self._store(body, version=str(int(body["metadata"]["resourceVersion"]) + 1))

    def _check(self, path: str, wanted: str) -> None:
        assert path == wanted
        if self.refusal is not None:
            raise self.refusal

    def _store(self, body: Json, version: str) -> Json:
        self.body = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
        return copy.deepcopy(self.body)


def lease(api: FakeApi) -> KubeLease:
    return KubeLease(api, virtual_time.LoopClock(), namespace="home", name="kvquota")  # type: ignore[arg-type]  # a fake of what is used


def stored(**spec: Any) -> Json:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "kvquota", "namespace": "home", "resourceVersion": "7", "labels": {"team": "inference"}},
        "spec": spec,
    }


@pytest.mark.parametrize(
    ("body", "record"),
    [
        pytest.param(None, Record(), id="one that is not there"),
        pytest.param(stored(), Record("7"), id="one that says nothing"),
        pytest.param(stored(holderIdentity=""), Record("7"), id="one without a holder"),
        pytest.param(
            stored(holderIdentity="a", leaseDurationSeconds=15, leaseTransitions=3, renewTime="2000-01-01T00:00:00Z"),
            Record("7", "a", 15, 3),
            id="one that is held: its times are not read",
        ),
    ],
)
def test_what_is_read(body: Json | None, record: Record) -> None:
    assert virtual_time.run(lease(FakeApi(body)).look()) == record


def written(body: Json | None, *holders: str) -> Json:
    """The spec of the Lease after each of `holders` has written itself into it."""

    async def story() -> Json:
        api = FakeApi(body)
        port = lease(api)
        record = await port.look()
        if not record.version:
            record = await port.make(10)
        for holder in holders:
            record = await port.write(record, holder, 10)
        assert api.body is not None
        return api.body

    return virtual_time.run(story())


def test_a_new_lease_has_no_holder_and_no_terms() -> None:
    body = written(None)
    assert body["spec"] == {"leaseDurationSeconds": 10, "leaseTransitions": 0}
    assert body["metadata"] == {"name": "kvquota", "namespace": "home", "resourceVersion": "1"}


def test_a_new_holder_begins_a_term_and_a_renewal_does_not() -> None:
    spec = written(None, "a", "a", "b", "b")["spec"]
    assert re.fullmatch(NOW, spec.pop("renewTime"))
    assert re.fullmatch(NOW, spec.pop("acquireTime"))
    assert spec == {"holderIdentity": "b", "leaseDurationSeconds": 10, "leaseTransitions": 2}


def test_a_lease_that_is_given_back_keeps_its_terms() -> None:
    spec = written(None, "a", NOBODY)["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("", 1)


def test_what_others_gave_the_lease_stays() -> None:
    body = written(stored(holderIdentity="old", leaseTransitions=5, strategy="x"), "a")
    assert body["metadata"]["labels"] == {"team": "inference"}
    assert (body["spec"]["strategy"], body["spec"]["leaseTransitions"]) == ("x", 6)


def test_who_is_late_gets_a_conflict() -> None:
    async def story() -> None:
        api = FakeApi(stored(holderIdentity="old", leaseTransitions=5))
        first, second = lease(api), lease(api)
        seen = await first.look()
        assert seen == await second.look()
        await first.write(seen, "a", 10)
        with pytest.raises(ConflictError):
            await second.write(seen, "b", 10)

    virtual_time.run(story())


@pytest.mark.parametrize("verb", ["get", "create", "update"])
def test_a_missing_right_is_named_with_the_way_out(verb: str) -> None:
    async def story() -> None:
        api = FakeApi(None if verb == "create" else stored())
        port = lease(api)
        record = await port.look()
        api.refusal = ForbiddenError("403: no")
        await {"get": port.look, "create": lambda: port.make(10), "update": lambda: port.write(record, "a", 10)}[verb]()

    with pytest.raises(ForbiddenError) as raised:
        virtual_time.run(story())
    assert str(raised.value) == (
        f"this account may not {verb} Lease kvquota in namespace home (403: no): give it the chart's Role for the"
        " Lease, or start one replica with --no-leader-elect"
    )


def test_no_two_processes_have_one_name() -> None:
    assert identity() != identity()


def test_the_namespace_is_that_of_the_pod(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("home\n")
    assert own_namespace(tmp_path / "namespace") == "home"
    with pytest.raises(LeaseLocationError, match="give --lease-namespace, or --no-leader-elect where one replica runs"):
        own_namespace(tmp_path / "nowhere")
