"""The entries of Secrets and ConfigMaps as the API server would store them.

Decides which bytes an entry has. Pure.

Invariants:

1. An entry of `stringData` wins over the same entry of `data`, as in the API server.
2. A value that cannot be read is a finding and no entry; the other entries stay.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from kvquota_cli.manifests.documents import Document
from kvquota_cli.manifests.places import Finding


def secret_entries(document: Document) -> tuple[dict[str, bytes], tuple[Finding, ...]]:
    """Entries of a Secret and what is wrong with it."""
    encoded, wrong_data = _decoded(document, "data")
    plain, wrong_text = _texts(document, "stringData")
    return {**encoded, **plain}, (*wrong_data, *wrong_text)


def config_map_entries(document: Document) -> tuple[dict[str, bytes], tuple[Finding, ...]]:
    """Entries of a ConfigMap and what is wrong with it."""
    plain, wrong_text = _texts(document, "data")
    encoded, wrong_data = _decoded(document, "binaryData")
    return {**encoded, **plain}, (*wrong_text, *wrong_data)


def _texts(document: Document, section: str) -> tuple[dict[str, bytes], tuple[Finding, ...]]:
    entries, wrong = _section(document, section)
    return {key: value.encode() for key, value in entries.items()}, wrong


def _decoded(document: Document, section: str) -> tuple[dict[str, bytes], tuple[Finding, ...]]:
    entries, wrong = _section(document, section)
    decoded: dict[str, bytes] = {}
    bad: list[Finding] = []
    for key, value in entries.items():
        try:
            decoded[key] = base64.b64decode("".join(value.split()), validate=True)
        except binascii.Error:
            advice = "encode it, or write it as it is under stringData" if section == "data" else "encode it"
            bad.append(_finding(document, section, key, f"not base64: {advice}"))
    return decoded, (*wrong, *bad)


def _section(document: Document, section: str) -> tuple[dict[str, str], tuple[Finding, ...]]:
    given: Any = document.content.get(section)
    if given is None:
        return {}, ()
    if not isinstance(given, Mapping):
        return {}, (_finding(document, section, "", "must be a mapping of names to text"),)
    wrong = tuple(
        _finding(document, section, key, "must be text: put the value in quotes")
        for key, value in given.items()
        if not isinstance(value, str)
    )
    return {key: value for key, value in given.items() if isinstance(value, str)}, wrong


def _finding(document: Document, section: str, key: str, message: str) -> Finding:
    path = (section, key) if key else (section,)
    return Finding(document.at(*path), message, field=".".join(path))
