"""YAML or JSON text to documents that remember the line of every field.

Decides what is read as what. Pure.

Invariants:

1. Scalars mean what `kubectl apply` takes them for: no dates, no base-60 numbers, `yes` and `on` are booleans.
2. What an API server in strict mode refuses is an error here: a key twice in one mapping, a key that is no string,
   a number that JSON does not have.
3. A `List` is its items. An empty document is no document.
4. Depth and number of nodes are bounded, so aliases cannot make a small file large.

It does not know what any kind of object should look like.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from kvquota_api.quoting import quoted
from kvquota_cli.manifests.places import FieldPath, Finding, Place, line_of

MAX_DEPTH: Final = 64  # levels; the deepest field of our resources is at 9
MAX_NODES: Final = 200_000  # of one file after aliases; 1,000 quotas are about 40,000

_MERGE: Final = "tag:yaml.org,2002:merge"
_DATE: Final = "tag:yaml.org,2002:timestamp"
_INT: Final = "tag:yaml.org,2002:int"
_FLOAT: Final = "tag:yaml.org,2002:float"


class ManifestError(Exception):
    """A file that cannot be read; `finding` says where and why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


@dataclass(frozen=True, slots=True)
class Document:
    """One mapping of a file. `lines` has the line of each field, counted from 1."""

    content: dict[str, Any]
    place: Place
    lines: dict[FieldPath, int]

    def at(self, *path: str | int) -> Place:
        """Where the field is, or the nearest one above it."""
        return Place(self.place.file, line_of(path, self.lines, self.place.line))


def read_documents(text: str, file: str) -> tuple[Document, ...]:
    """All documents of a file. Raises ManifestError for the first thing that cannot be read."""
    try:
        loader = _Loader(text)
        return tuple(document for node in _nodes(loader) for document in _document(loader, node, file))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ManifestError(Finding(Place(file, line), f"not valid YAML: {error.reason}")) from error
    except yaml.YAMLError as error:
        raise _syntax(error, file) from error
    except RecursionError as error:
        raise ManifestError(Finding(Place(file, 1), f"too large: more than {MAX_DEPTH} levels")) from error


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {  # noqa: RUF012 - the base class reads it so
        first: [each for each in resolvers if each[0] not in (_DATE, _INT, _FLOAT)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


# As goyaml.v2 reads them: without the base-60 numbers of YAML 1.1, with exponents that have no point.
_Loader.add_implicit_resolver(
    _INT, re.compile(r"^[-+]?(?:0b[01_]+|0[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.nan|\.NaN|\.NAN)$"
    ),
    list("-+0123456789."),
)


def _nodes(loader: _Loader) -> Iterator[yaml.Node]:
    while loader.check_node():
        node = loader.get_node()
        if node is not None:
            yield node


def _document(loader: _Loader, node: yaml.Node, file: str) -> Iterator[Document]:
    builder = _Builder(loader, file)
    content = builder.value(node, ())
    if content is None:
        return
    place = Place(file, _line(node))
    if not isinstance(content, dict):
        raise ManifestError(Finding(place, "a document must be a mapping that begins with apiVersion and kind"))
    document = Document(content, place, builder.lines)
    yield from _items(document) if content.get("kind") == "List" else (document,)


def _items(document: Document) -> Iterator[Document]:
    items = document.content.get("items")
    for index, item in enumerate(items if isinstance(items, list) else ()):
        path = ("items", index)
        if not isinstance(item, dict):
            raise ManifestError(Finding(document.at(*path), f"items[{index}] of the List must be an object"))
        inside = {key[2:]: line for key, line in document.lines.items() if key[:2] == path and len(key) > 2}
        yield Document(item, document.at(*path), inside)


@dataclass(slots=True)
class _Builder:
    loader: _Loader
    file: str
    lines: dict[FieldPath, int] = field(default_factory=dict)
    nodes: int = 0

    def value(self, node: yaml.Node, path: FieldPath) -> Any:
        self.nodes += 1
        if len(path) > MAX_DEPTH or self.nodes > MAX_NODES:
            raise self._error(node, f"too large: more than {MAX_NODES} nodes or {MAX_DEPTH} levels in one document")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return self._sequence(node, path)
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: FieldPath) -> dict[str, Any]:
        self._refuse_repeated(node)
        self.loader.flatten_mapping(node)
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            self.lines[(*path, key)] = _line(key_node)
            built[key] = self.value(value_node, (*path, key))
        return built

    def _sequence(self, node: yaml.SequenceNode, path: FieldPath) -> list[Any]:
        built = []
        for index, item in enumerate(node.value):
            self.lines[(*path, index)] = _line(item)
            built.append(self.value(item, (*path, index)))
        return built

    def _scalar(self, node: yaml.Node) -> Any:
        try:
            built = self.loader.construct_object(node)
        except ValueError as error:  # Python does not read an integer of more than 4300 digits
            raise self._error(node, f"{quoted(node.value)} is not a number that an API server takes") from error
        if isinstance(built, float) and not math.isfinite(built):
            raise self._error(node, f"{node.value} is not a number that an API server takes")
        if built is not None and not isinstance(built, str | int | float):
            raise self._error(node, f"{node.tag} is not a type that a manifest can have: write text, a number or true")
        return built

    def _key(self, node: yaml.Node) -> str:
        key = self._scalar(node) if isinstance(node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            raise self._error(node, f"the key {node.value!r} must be text: put it in quotes")
        return key

    def _refuse_repeated(self, node: yaml.MappingNode) -> None:
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self._key(key_node)
            if key in seen:
                raise self._error(key_node, f"{key} is written twice, first in line {seen[key]}: keep one of them")
            seen[key] = _line(key_node)

    def _error(self, node: yaml.Node, message: str) -> ManifestError:
        return ManifestError(Finding(Place(self.file, _line(node)), message))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _syntax(error: yaml.YAMLError, file: str) -> ManifestError:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        line, problem = error.problem_mark.line + 1, error.problem or error.context
    else:
        line, problem = 1, str(error)
    return ManifestError(Finding(Place(file, line), f"not valid YAML: {problem}"))
