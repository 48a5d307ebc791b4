"""Whether a Pod is written as an API server takes it, as far as anything here reads it.

Decides the kind of each such field. Pure.

Invariants:

1. Every problem names its field and what it must be. A field that nothing here reads is not judged.
2. A field that is null counts as one that is not there, as in an API server.

It does not know what a Pod means.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvquota_api.quoting import quoted
from kvquota_cli.manifests.places import FieldPath


@dataclass(frozen=True, slots=True)
class _Scalar:
    """One of these types; `said`: what people call it."""

    types: tuple[type, ...]
    said: str


@dataclass(frozen=True, slots=True)
class _List:
    of: Shape
    least: int = 0


@dataclass(frozen=True, slots=True)
class _Texts:
    """Any names, each with text."""


@dataclass(frozen=True, slots=True)
class _Fields:
    """Names of fields with their shapes; those of `needed` must be there."""

    shapes: Mapping[str, Shape]
    needed: tuple[str, ...] = ()


Shape = _Scalar | _List | _Texts | _Fields

_TEXT: Final = _Scalar((str,), "text")
_NUMBER: Final = _Scalar((int,), "a whole number")
_SWITCH: Final = _Scalar((bool,), "true or false")
_PORT: Final = _Scalar((int, str), "a port's number or name")

_ACTION: Final = _Fields({"port": _PORT, "path": _TEXT})
_PROBE: Final = _Fields({"httpGet": _ACTION, "tcpSocket": _ACTION})
_CONTAINER: Final = _Fields(
    {
        "name": _TEXT,
        "command": _List(_TEXT),
        "args": _List(_TEXT),
        "ports": _List(_Fields({"name": _TEXT, "containerPort": _NUMBER}, ("containerPort",))),
        "volumeMounts": _List(_Fields({"name": _TEXT, "mountPath": _TEXT}, ("mountPath",))),
        "startupProbe": _PROBE,
        "livenessProbe": _PROBE,
        "readinessProbe": _PROBE,
        "lifecycle": _Fields({"preStop": _Fields({})}),
    },
    ("name",),
)
_VOLUME: Final = _Fields({"name": _TEXT, "configMap": _Fields({"name": _TEXT})}, ("name",))
_POD: Final = _Fields(
    {
        "metadata": _Fields({"uid": _TEXT, "labels": _Texts(), "annotations": _Texts()}),
        "spec": _Fields(
            {
                "containers": _List(_CONTAINER, least=1),
                "initContainers": _List(_CONTAINER),
                "volumes": _List(_VOLUME),
                "hostNetwork": _SWITCH,
                "terminationGracePeriodSeconds": _NUMBER,
            },
            ("containers",),
        ),
        "status": _Fields(
            {"phase": _TEXT, "podIP": _TEXT, "conditions": _List(_Fields({"type": _TEXT, "status": _TEXT}))}
        ),
    },
    ("spec",),
)


@dataclass(frozen=True, slots=True)
class Misshapen:
    """`message` follows the field's name in a sentence."""

    path: FieldPath
    message: str


def misshapen(pod: Mapping[str, Any]) -> Iterator[Misshapen]:
    """Every field of the Pod that is of another kind than it must be."""
    return _judged(pod, _POD, ())


def without_nulls(value: Any) -> Any:
    """The same without fields that are null."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def _judged(value: Any, shape: Shape, path: FieldPath) -> Iterator[Misshapen]:
    if isinstance(shape, _Scalar):
        yield from _scalar(value, shape, path)
    elif isinstance(shape, _List):
        yield from _list(value, shape, path)
    elif not isinstance(value, dict):
        yield Misshapen(path, f"must be a mapping, it is {quoted(value)}")
    elif isinstance(shape, _Texts):
        for key, each in value.items():
            yield from _scalar(each, _TEXT, (*path, key))
    else:
        yield from _fields(value, shape, path)


def _scalar(value: Any, shape: _Scalar, path: FieldPath) -> Iterator[Misshapen]:
    if type(value) in shape.types:
        return
    wanted = f"must be {shape.said}, it is {quoted(value)}"
    if str in shape.types and isinstance(value, bool | int | float):
        wanted = f'must be text, and {json.dumps(value)} is none: write "{json.dumps(value)}" with the quotes'
    yield Misshapen(path, wanted)


def _list(value: Any, shape: _List, path: FieldPath) -> Iterator[Misshapen]:
    if not isinstance(value, list):
        yield Misshapen(path, f"must be a list, it is {quoted(value)}")
        return
    if len(value) < shape.least:
        yield Misshapen(path, f"must have at least {shape.least}, and is empty")
    for at, each in enumerate(value):
        yield from _judged(each, shape.of, (*path, at))


def _fields(value: Mapping[str, Any], shape: _Fields, path: FieldPath) -> Iterator[Misshapen]:
    for name in shape.needed:
        if value.get(name) is None:
            yield Misshapen((*path, name), "is missing")
    for name, inner in shape.shapes.items():
        if value.get(name) is not None:
            yield from _judged(value[name], inner, (*path, name))
