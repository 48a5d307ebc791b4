"""A table of objects, as `kubectl get` prints it.

Decides cells and spacing from the printer columns of a CRD and the objects. Pure.

Invariants:

1. The columns are those of the CRD, found by its own JSONPaths: a cell is what the API server would put there.
2. NAME comes first. A column of a priority above 0 is shown only in a wide table.
3. What is absent is an empty cell, never 0.
4. Columns are padded by three spaces to at least six characters; the last one is not padded.
5. A table that is too wide for the terminal gets smaller gaps first, and then loses columns that say least; NAME, the
   numbers, STATE and AGE stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from kvquota_cli.tables.ages import age
from kvquota_cli.tables.json_path import Step, find, parse_path

_PADDING: Final = 3  # spaces; kubectl's tab writer has minimal width 6 and padding 3
_LEAST_WIDTH: Final = 6
_NARROWER: Final = (
    (2, frozenset[str]()),
    (2, frozenset({"POOL"})),
    (1, frozenset({"POOL"})),
    (1, frozenset({"POOL", "TENANT"})),
)  # padding, and the columns that are left out


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `kind` is the CRD's type of it (string, integer, date, ...)."""

    name: str
    kind: str
    path: tuple[Step, ...]
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Header and rows of text, all of one length."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


NAME: Final = Column("Name", "string", ("metadata", "name"))


def columns_of(printer_columns: Sequence[Mapping[str, Any]], *, wide: bool = False) -> tuple[Column, ...]:
    """The columns of a CRD's `additionalPrinterColumns`, NAME first. Raises PathError for a path it cannot follow."""
    declared = [
        Column(each["name"], each["type"], parse_path(each["jsonPath"]), each.get("priority", 0))
        for each in printer_columns
    ]
    return (NAME, *(column for column in declared if wide or column.priority == 0))


def table_of(columns: Sequence[Column], objects: Sequence[Mapping[str, Any]], now: datetime) -> Table:
    """Objects, as the API has them, to text; `now` is aware and serves the ages."""
    rows = [tuple(_cell(column, each, now) for column in columns) for each in objects]
    return Table(tuple(column.name.upper() for column in columns), tuple(rows))


def table_from_server(answer: Mapping[str, Any]) -> Table:
    """An API server's own `meta.k8s.io/v1` Table, whose cells are ready to print; wide columns are left out."""
    definitions = answer["columnDefinitions"]
    shown = [(index, each) for index, each in enumerate(definitions) if each.get("priority", 0) == 0]
    rows = [tuple(_text(row["cells"][index]) for index, _ in shown) for row in answer["rows"]]
    return Table(tuple(each["name"].upper() for _, each in shown), tuple(rows))


def _cell(column: Column, content: Mapping[str, Any], now: datetime) -> str:
    value = find(column.path, content)
    return age(str(value), now) if column.kind == "date" and value is not None else _text(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def printed(table: Table, columns: int | None = None) -> tuple[str, ...]:
    """The lines of the table, header first; made to fit into `columns` characters as far as that goes."""
    lines = _spaced(table, _PADDING, _LEAST_WIDTH)
    for padding, dropped in _NARROWER:
        if columns is None or max(map(len, lines)) <= columns:
            break
        lines = _spaced(_without(table, dropped), padding, 0)
    return lines


def _without(table: Table, dropped: frozenset[str]) -> Table:
    kept = [index for index, name in enumerate(table.header) if name not in dropped]
    header, *rows = (tuple(line[index] for index in kept) for line in (table.header, *table.rows))
    return Table(header, tuple(rows))


def _spaced(table: Table, padding: int, least: int) -> tuple[str, ...]:
    lines = (table.header, *table.rows)
    widths = [max(least, padding + max(map(len, column))) for column in zip(*lines, strict=True)]
    return tuple(_line(line, widths) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(cell.ljust(width) for cell, width in zip(cells[:-1], widths, strict=False)) + cells[-1]
