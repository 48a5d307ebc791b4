"""From the JSON schema that pydantic makes to the structural schema that a CRD needs.

Decides how each keyword is written for the API server. Pure and deterministic: fields in the order of the models.

Invariants:

1. A keyword, or a shape of one, that is not known here is a SchemaError with its path, never passed on or dropped.
2. Every list, map and text has a bound: the API server estimates what CEL costs from the bounds and refuses a CRD whose
   rules might cost too much. What has none is a SchemaError.
3. A description ends with the bounds and the default, since `kubectl explain` shows neither.
4. A list says how two writers of it are merged: item by item where its items have a key, else as a whole.
5. A default is stored by the API server, so only scalars and objects of scalars are; empty lists and maps are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from kvquota_api.words import PATTERN_WORDS

Json = dict[str, Any]

_INT32_MAX: Final = 2**31 - 1
_POWERS: Final = {2**31 - 1: "2^31-1", 2**53: "2^53"}  # bounds whose digits say nothing to a reader
_COPIED: Final = (
    "type", "enum", "pattern", "format", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems",
    "maxProperties", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys", "x-kubernetes-map-type", "x-kubernetes-validations",
)  # fmt: skip
_HANDLED: Final = frozenset(
    {*_COPIED, "$ref", "$defs", "anyOf", "const", "title", "description", "default", "properties", "required", "items",
     "additionalProperties"}
)  # fmt: skip
_FORMATS: Final = ("date-time",)


class SchemaError(TypeError):
    """A model that cannot be written as a structural schema; the text begins with the path."""


def structural_schema(model: type[BaseModel]) -> Json:
    """The structural schema of a model and all that it holds. Raises SchemaError."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _structural(schema, schema.get("$defs", {}), (), model.__name__)


def _structural(schema: Mapping[str, Any], definitions: Mapping[str, Json], seen: tuple[str, ...], path: str) -> Json:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        if name in seen:
            raise SchemaError(f"{path}: {name} holds itself, which a structural schema cannot say")
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return _structural({**definitions[name], **beside}, definitions, (*seen, name), path)
    if "anyOf" in schema:
        return _structural(_without_null(schema, path), definitions, seen, path)
    _refuse_unknown(schema, path)
    written: Json = {key: schema[key] for key in _COPIED if key in schema}
    if "const" in schema:
        written["enum"] = [schema["const"]]
    if schema.get("type") == "integer":
        written["format"] = "int32" if 0 <= schema.get("maximum", _INT32_MAX + 1) <= _INT32_MAX else "int64"
    _add_default(written, schema)
    _add_children(written, schema, definitions, seen, path)
    _refuse_unbounded(written, path)
    described = _description(schema, written)
    return {"description": described, **written} if described else written


def _without_null(schema: Mapping[str, Any], path: str) -> Json:
    """`anyOf [X, null]` is X that may be left out."""
    choices = [each for each in schema["anyOf"] if each != {"type": "null"}]
    if len(choices) != 1:
        raise SchemaError(
            f"{path}: a choice between {len(choices)} shapes has no structural schema; use optional fields"
        )
    return {**choices[0], **{key: value for key, value in schema.items() if key != "anyOf"}}


def _refuse_unknown(schema: Mapping[str, Any], path: str) -> None:
    unknown = sorted(set(schema) - _HANDLED)
    if unknown:
        raise SchemaError(f"{path}: keyword {', '.join(unknown)} has no translation here")
    if schema.get("format", "date-time") not in _FORMATS:
        raise SchemaError(f"{path}: format {schema['format']} has no translation here")


def _add_default(written: Json, schema: Mapping[str, Any]) -> None:
    default = _stored(schema.get("default"))
    if default is not None:
        written["default"] = default


def _stored(default: Any) -> Any:
    """A default as it is stored: without what is None or an empty list or map; None when nothing is left."""
    if isinstance(default, Mapping):
        return {key: kept for key, value in default.items() if (kept := _stored(value)) is not None} or None
    return None if default == [] else default


def _add_children(
    written: Json, schema: Mapping[str, Any], definitions: Mapping[str, Json], seen: tuple[str, ...], path: str
) -> None:
    if "properties" in schema:
        written["properties"] = {
            name: _structural(child, definitions, seen, f"{path}.{name}")
            for name, child in schema["properties"].items()
        }
    if schema.get("required"):
        written["required"] = list(schema["required"])
    if "items" in schema:
        written.setdefault("x-kubernetes-list-type", "atomic")
        written["items"] = _structural(schema["items"], definitions, seen, f"{path}[]")
    others = schema.get("additionalProperties", False)
    if others is True:
        written["x-kubernetes-preserve-unknown-fields"] = True
    elif others is not False:
        written["additionalProperties"] = _structural(others, definitions, seen, f"{path}{{}}")


def _refuse_unbounded(written: Mapping[str, Any], path: str) -> None:
    bounds = {"array": ("maxItems",), "string": ("maxLength", "enum", "format")}
    needed = ("maxProperties",) if "additionalProperties" in written else bounds.get(written.get("type", ""), ())
    if needed and not any(bound in written for bound in needed):
        raise SchemaError(f"{path}: {written['type']} without {needed[0]}: bound it, CEL is priced by the bounds")


def _description(schema: Mapping[str, Any], written: Mapping[str, Any]) -> str:
    paragraphs = (" ".join(each.split()) for each in schema.get("description", "").split("\n\n"))
    return " ".join(part for part in ("\n\n".join(paragraphs), _bounds(written), _default(written)) if part)


def _bounds(written: Mapping[str, Any]) -> str:
    if "minimum" in written:
        return _range(written["minimum"], written.get("maximum"))
    if "maxItems" in written:
        return f"At most {written['maxItems']} items."
    if "maxProperties" in written:
        return f"At most {written['maxProperties']} entries."
    return _text_bounds(written) if written.get("type") == "string" and "maxLength" in written else ""


def _range(low: int, high: int | None) -> str:
    return f"At least {low}." if high is None else f"From {low} to {_POWERS.get(high, high)}."


def _text_bounds(written: Mapping[str, Any]) -> str:
    longest = f"At most {written['maxLength']} characters."
    words = PATTERN_WORDS.get(written.get("pattern", ""), "")
    return f"{longest} It {words}." if words else longest


def _default(written: Mapping[str, Any]) -> str:
    default = written.get("default")
    if isinstance(default, Mapping):
        return _object_default(default, written["properties"])
    if default is None:
        return ""
    said = str(default).lower() if isinstance(default, bool) else default
    return f"Default: {said if said != '' else 'empty'}."


def _object_default(default: Mapping[str, Any], fields: Mapping[str, Json]) -> str:
    """What an object that is left out is, as far as its fields do not say so themselves."""
    unsaid = [f"{name}: {value}" for name, value in default.items() if fields[name].get("default") != value]
    return f"Default: {{{', '.join(unsaid)}}}." if unsaid else ""
