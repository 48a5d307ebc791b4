"""The Lease (coordination.k8s.io/v1) by which replicas agree who leads.

Every write names the version that it replaces, so that of two writers one gets a conflict. The times in it are those of
the writer, for people who look at it.
"""

from __future__ import annotations

import secrets
import socket
import time
from pathlib import Path
from typing import Final

from kvquota_operator.adapters.api import Api, Json, find, object_path
from kvquota_operator.leading import ABSENT, NOBODY, Record
from kvquota_operator.ports import Clock, ForbiddenError

COORDINATION: Final = "/apis/coordination.k8s.io/v1"
OWN_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")  # where every pod finds it


class LeaseLocationError(RuntimeError):
    """Nobody said where the Lease is; the text says what to give."""


def own_namespace(path: Path = OWN_NAMESPACE) -> str:
    """The namespace of this pod. Raises LeaseLocationError outside of one."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise LeaseLocationError(
            f"the own namespace is not known ({path} cannot be read): give --lease-namespace, or --no-leader-elect"
            " where one replica runs"
        ) from error


def identity() -> str:
    """A name of this process that no other one ever has; a person finds the pod in it."""
    return f"{socket.gethostname()}_{secrets.token_hex(4)}"


def steady_seconds() -> float:
    """Seconds from an arbitrary start that go on while the machine sleeps, where the system counts them."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class KubeLease:
    """One Lease by its name. Methods raise ClusterError."""

    def __init__(self, api: Api, clock: Clock, *, namespace: str, name: str) -> None:
        self._api = api
        self._clock = clock
        self._namespace = namespace
        self._name = name
        self._body: Json = {}

    async def look(self) -> Record:
        """What the Lease says."""
        try:
            return self._keep(await find(self._api.get(self._path(self._name))) or {})
        except ForbiddenError as error:
            raise self._forbidden("get", error) from error

    async def make(self, lease_seconds: float) -> Record:
        """Make the Lease, without a holder."""
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {"leaseDurationSeconds": round(lease_seconds), "leaseTransitions": 0},
        }
        try:
            return self._keep(await self._api.create(self._path(), body))
        except ForbiddenError as error:
            raise self._forbidden("create", error) from error

    async def write(self, over: Record, holder: str, lease_seconds: float) -> Record:
        """Make `holder` the holder if the Lease still is `over`, which was the last that was seen."""
        try:
            body = self._written(over, holder, lease_seconds)
            return self._keep(await self._api.replace(self._path(self._name), body))
        except ForbiddenError as error:
            raise self._forbidden("update", error) from error

    def _written(self, over: Record, holder: str, lease_seconds: float) -> Json:
        """Fields and labels that others gave the Lease stay."""
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {**(self._body.get("spec") or {}), "renewTime": now, "leaseDurationSeconds": round(lease_seconds)}
        spec["holderIdentity"] = holder
        if holder not in (NOBODY, over.holder):
            spec |= {"acquireTime": now, "leaseTransitions": over.terms + 1}
        return {**self._body, "metadata": {**self._body["metadata"], "resourceVersion": over.version}, "spec": spec}

    def _keep(self, body: Json) -> Record:
        self._body = body
        spec = body.get("spec") or {}
        return Record(
            version=body["metadata"]["resourceVersion"] if body else ABSENT,
            holder=spec.get("holderIdentity") or NOBODY,
            lease_seconds=float(spec.get("leaseDurationSeconds") or 0),
            terms=int(spec.get("leaseTransitions") or 0),
        )

    def _path(self, name: str = "") -> str:
        return object_path(COORDINATION, self._namespace, "leases", name)

    def _forbidden(self, verb: str, error: ForbiddenError) -> ForbiddenError:
        return ForbiddenError(
            f"this account may not {verb} Lease {self._name} in namespace {self._namespace} ({error}): give it the"
            " chart's Role for the Lease, or start one replica with --no-leader-elect"
        )
