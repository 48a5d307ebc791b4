"""The objects of the files, as an API server would hold them.

Decides which edit takes effect, and keeps uid, generation and creation time. Pure: time and ids are passed in.

Invariants:

1. An edit that an API server would refuse leaves the object as it was. An object that was never good is held as it is,
   so that its status can say what is wrong with it.
2. `generation` grows when, and only when, an object's spec changes. An object that comes back is a new one.
3. A finding is told once, and again only after it was gone.
4. Statuses are kept apart from the files: what a file says of a status is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from kvquota_cli.manifests.collection import Manifest, collect
from kvquota_cli.manifests.judging import is_ours, judge, judge_change
from kvquota_cli.manifests.last_good import InForce
from kvquota_cli.manifests.places import Finding, ObjectKey

Body = Mapping[str, Any]
_NO_STATUS: Final[Body] = {}


@dataclass(frozen=True, slots=True)
class News:
    """`changed`: some object differs. `told`: findings that are new. `cleared`: there were findings, none is left."""

    changed: bool
    told: tuple[Finding, ...]
    cleared: bool


@dataclass(frozen=True, slots=True)
class Stored:
    """An object; `body` is without its status. Both are the same objects until they change."""

    body: Body
    status: Body

    def whole(self) -> dict[str, Any]:
        """As an API server would show it."""
        return {**self.body, "status": self.status}


@dataclass(frozen=True, slots=True)
class _Held:
    body: Body
    good: bool


class Objects:
    """`namespace` is for objects that name none; `new_id` gives a fresh uid."""

    def __init__(self, namespace: str, new_id: Callable[[], str]) -> None:
        self._namespace = namespace
        self._new_id = new_id
        self._held: dict[ObjectKey, _Held] = {}
        self._statuses: dict[ObjectKey, Body] = {}
        self._told: set[tuple[str, ...]] = set()

    def take(self, force: InForce, now: datetime) -> News:
        """Hold what the files say now; `now` (UTC) is the creation time of what is new."""
        collection = collect(force.documents, self._namespace)
        findings = [*force.findings, *collection.findings]
        held: dict[ObjectKey, _Held] = {}
        wrong: tuple[Finding, ...]
        for manifest in filter(is_ours, collection.manifests):
            held[manifest.key], wrong = self._admitted(manifest, now)
            findings += wrong
        changed, self._held = held != self._held, held
        self._statuses = {key: status for key, status in self._statuses.items() if key in held}
        before, self._told = self._told, {_sameness(each) for each in findings}
        told = tuple(each for each in findings if _sameness(each) not in before)
        return News(changed, told, cleared=bool(before) and not findings)

    def find(self, key: ObjectKey) -> Stored | None:
        """One object."""
        held = self._held.get(key)
        return None if held is None else Stored(held.body, self._statuses.get(key, _NO_STATUS))

    def all_of(self, kind: str, namespace: str | None = None) -> Iterator[tuple[ObjectKey, Stored]]:
        """All objects of a kind, by namespace and name."""
        for key in sorted(self._held):
            if key.kind == kind and namespace in (None, key.namespace):
                yield key, Stored(self._held[key].body, self._statuses.get(key, _NO_STATUS))

    def write_status(self, key: ObjectKey, status: Body) -> bool:
        """Make `status` the object's whole status. False where there is no such object."""
        if key not in self._held:
            return False
        self._statuses[key] = status
        return True

    def _admitted(self, manifest: Manifest, now: datetime) -> tuple[_Held, tuple[Finding, ...]]:
        before = self._held.get(manifest.key)
        findings = judge(manifest)
        if before is not None and before.good and not findings:
            findings = judge_change(before.body, manifest)
        if before is not None and before.good and findings:
            return before, findings
        return _Held(self._body(manifest, before, now), good=not findings), findings

    def _body(self, manifest: Manifest, before: _Held | None, now: datetime) -> Body:
        content = {key: value for key, value in manifest.document.content.items() if key != "status"}
        metadata = content["metadata"]
        old = None if before is None else before.body["metadata"]
        stamped = {
            **metadata,
            "namespace": manifest.key.namespace,
            "uid": self._new_id() if old is None else old["uid"],
            "creationTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ") if old is None else old["creationTimestamp"],
            "generation": _generation(content, before),
        }
        return {**content, "metadata": stamped}


def _generation(content: Body, before: _Held | None) -> int:
    if before is None:
        return 1
    old: int = before.body["metadata"]["generation"]
    return old + (content.get("spec") != before.body.get("spec"))


def _sameness(finding: Finding) -> tuple[str, ...]:
    """What makes two findings one: all but the line, which moves when something above it is edited."""
    return (finding.place.file, finding.object, finding.field, finding.message)
