"""Many documents to one set of objects, as a namespace would hold them.

Decides which document is which object. Pure.

Invariants:

1. An object is one document. Where two documents name one object the first, by file name and line, is it, and the
   other is a finding that names both places.
2. A document that is no object (no kind, no name) is a finding, and the others stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from kvquota_cli.manifests.documents import Document
from kvquota_cli.manifests.places import Finding, ObjectKey

NAME: Final = re.compile(r"^(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")


@dataclass(frozen=True, slots=True)
class Manifest:
    """A document that names an object. `key.namespace` is the given default where the document has none."""

    key: ObjectKey
    api_version: str
    document: Document


@dataclass(frozen=True, slots=True)
class Collection:
    """Objects in the order of their places, and what was wrong with the documents."""

    manifests: tuple[Manifest, ...]
    findings: tuple[Finding, ...]


def collect(documents: Iterable[Document], namespace: str) -> Collection:
    """Objects of the documents; `namespace` is for those that name none."""
    found: dict[ObjectKey, Manifest] = {}
    findings: list[Finding] = []
    for document in sorted(documents, key=lambda each: each.place):
        manifest = _manifest(document, namespace)
        if isinstance(manifest, Finding):
            findings.append(manifest)
        elif (first := found.setdefault(manifest.key, manifest)) is not manifest:
            findings.append(_repeated(manifest, first))
    return Collection(tuple(found.values()), tuple(findings))


def _manifest(document: Document, namespace: str) -> Manifest | Finding:
    content = document.content
    for field in ("apiVersion", "kind"):
        if not isinstance(content.get(field), str) or not content[field]:
            return Finding(document.at(field), "is missing: a manifest begins with apiVersion and kind", field=field)
    given: Any = content.get("metadata")
    metadata: dict[str, Any] = given if isinstance(given, dict) else {}
    name = metadata.get("name")
    if not isinstance(name, str) or NAME.match(name) is None:
        return _bad_name(document, name)
    inside = metadata.get("namespace") or namespace
    if not isinstance(inside, str):
        message = f"{inside!r} is no namespace: put it in quotes"
        return Finding(document.at("metadata", "namespace"), message, f"{content['kind']} {name}", "metadata.namespace")
    return Manifest(ObjectKey(content["kind"], inside, name), content["apiVersion"], document)


def _bad_name(document: Document, name: Any) -> Finding:
    message = (
        "is missing: give the object a name"
        if name is None
        else f"{name!r} is no name: use text of lower-case letters, digits, '-' and '.'"
    )
    return Finding(document.at("metadata", "name"), message, str(document.content["kind"]), "metadata.name")


def _repeated(second: Manifest, first: Manifest) -> Finding:
    message = f"is already in {first.document.place}: keep one of the two, the first is used"
    return Finding(second.document.place, message, str(second.key))
