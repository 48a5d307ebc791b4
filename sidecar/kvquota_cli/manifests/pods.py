"""The Pods among manifests, as an API server would have them.

Decides which can be read, and gives each that has none yet a uid. Pure.

Invariants:

1. A Pod that cannot be read is findings, each with its field and line, and the others stay.
2. The uid of a Pod is made of its name: the same manifests give the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvquota_cli.manifests.collection import Manifest
from kvquota_cli.manifests.places import Finding, ObjectKey, Place, dotted
from kvquota_cli.manifests.pod_shape import misshapen, without_nulls
from kvquota_operator.reading.pods import PodRecord, read_pod

POD: Final = "Pod"
_NO_UIDS: Final = uuid.UUID("6f1c2d58-0d6a-4c53-9f0e-2f4b8a1c7d39")  # of pods that have none yet: made of their names


@dataclass(frozen=True, slots=True)
class PodManifest:
    """`body`: the whole Pod. `place` is None for one that is not there yet."""

    record: PodRecord
    body: Mapping[str, Any]
    place: Place | None


@dataclass(frozen=True, slots=True)
class PodsRead:
    """`broken`: what is wrong with the Pods that cannot be read, by Pod."""

    pods: tuple[PodManifest, ...]
    broken: Mapping[ObjectKey, tuple[Finding, ...]]


def read_pods(manifests: Iterable[Manifest]) -> PodsRead:
    """The Pods that have not finished."""
    own = [each for each in manifests if (each.key.kind, each.api_version) == (POD, "v1")]
    broken = {each.key: found for each in own if (found := tuple(_wrong(each)))}
    read = [_read(each) for each in own if each.key not in broken]
    return PodsRead(tuple(each for each in read if each is not None), broken)


def _wrong(manifest: Manifest) -> Iterator[Finding]:
    for each in misshapen(manifest.document.content):
        yield Finding(manifest.document.at(*each.path), each.message, str(manifest.key), dotted(each.path))


def _read(manifest: Manifest) -> PodManifest | None:
    body, key = without_nulls(manifest.document.content), manifest.key
    known = {"namespace": key.namespace, "uid": made_uid(key.namespace, key.name)}
    body = {**body, "metadata": {**known, **body["metadata"]}}
    record = read_pod(body)
    return None if record is None else PodManifest(record, body, manifest.document.place)


def made_uid(namespace: str, name: str) -> str:
    """The uid of a Pod that has none yet."""
    return str(uuid.uuid5(_NO_UIDS, f"{namespace}/{name}"))
