"""The reference of both resources as Markdown, from the same schemas as the CRDs.

Decides how a field is shown: its path, its type and what `kubectl explain` says of it; and which rules hold between
fields. Pure and deterministic: fields in the order of the models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kvquota_api.crd import RESOURCES, Column, Resource, object_schema
from kvquota_api.meta import API_VERSION, CATEGORY

Json = Mapping[str, Any]

_TITLE: Final = f"""\
# Reference of the resources

Generated from the models in `crds/kvquota_api` by `make crds`; edit those. Both resources are namespaced, of API
version `{API_VERSION}` and category `{CATEGORY}` (`kubectl get {CATEGORY}` lists both). `kubectl explain` says
the same. Fields in **bold** are required where the object around them is there; `[]` is one item of a list.
"""
_COLUMNS: Final = "| column | shows | |\n|---|---|---|"
_HEAD: Final = "| field | type | meaning, unit, bounds, default |\n|---|---|---|"


def reference() -> str:
    """The whole document."""
    return "\n".join((_TITLE, *(line for resource in RESOURCES for line in _of_resource(resource))))


def _of_resource(resource: Resource) -> Iterator[str]:
    schema = object_schema(resource.model)
    yield f"## {resource.kind} (`{resource.short}`)\n\n{schema['description']}\n"
    for part in ("spec", "status"):
        inside = schema["properties"][part]
        yield f"### {resource.kind} {part}\n\n{inside['description']}\n\n{_HEAD}"
        yield from _rows(inside, "")
        yield ""
    yield f"### {resource.kind} columns\n\nOf `kubectl get {resource.short}`:\n\n{_COLUMNS}"
    yield from (_column(column) for column in resource.columns)
    yield f"\n### {resource.kind} rules\n\nRefused by the API server and by `kvquota check`, in these words:\n"
    yield from dict.fromkeys(_rules(schema, ""))
    yield ""


def _column(column: Column) -> str:
    wide = "with `-o wide`" if column.wide else ""
    return f"| {column.name.upper()} | `{column.path.removeprefix('.')}` | {wide} |"


def _rows(schema: Json, path: str) -> Iterator[str]:
    for name, child in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        shown = f"**`{here}`**" if name in schema.get("required", ()) else f"`{here}`"
        yield f"| {shown} | {_type(child)} | {_in_cell(child.get('description', ''))} |"
        yield from _rows(child, here)
        yield from _rows(child.get("items", {}), f"{here}[]")


def _type(schema: Json) -> str:
    if "enum" in schema:
        return _in_cell(" | ".join(f"`{word}`" for word in schema["enum"]))
    if "x-kubernetes-int-or-string" in schema:
        return "number or text"
    if "x-kubernetes-preserve-unknown-fields" in schema:
        return "any object"
    if "additionalProperties" in schema:
        return f"map of {_type(schema['additionalProperties'])}"
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    return str(schema.get("format") if schema.get("format") == "date-time" else schema["type"])


def _in_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _rules(schema: Json, path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        blamed = f"{path}{rule.get('fieldPath', '')}".removeprefix(".")
        yield f"* `{blamed}`: {rule['message']}"
    for name, child in schema.get("properties", {}).items():
        yield from _rules(child, f"{path}.{name}")
        yield from _rules(child.get("items", {}), f"{path}.{name}[]")
