"""When a table of the demonstration says what the prose beside it says.

A status is written only every few seconds, so for a moment after a change a table still shows what was before. Pure.

Invariants:

1. A table of an act has flood in it as it runs. When quotas are enforced, a tenant with requests holds something; while
   they only count, steady may have requests that wait and hold nothing: that is what is to be seen.
2. The last table shows nothing held and nothing running.
"""

from __future__ import annotations

from kvquota_cli.demo.scenario import FLOOD
from kvquota_cli.demo.tally import Act
from kvquota_cli.tables.table import Table


def tells_of(act: Act, table: Table) -> bool:
    """Whether the table is one of this act."""
    rows = _rows(table)
    others_agree = act == "Counted" or all(_agrees(row) for row in rows.values())
    return FLOOD in rows and _runs(rows[FLOOD]) and others_agree


def is_over(table: Table) -> bool:
    """Whether the table shows that everything has ended."""
    return all(row.get("INFLIGHT") == "0" and row.get("USED") == "0" for row in _rows(table).values())


def _rows(table: Table) -> dict[str, dict[str, str]]:
    return {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}


def _runs(row: dict[str, str]) -> bool:
    return row.get("INFLIGHT", "") not in ("", "0") and row.get("USED", "") not in ("", "0")


def _agrees(row: dict[str, str]) -> bool:
    return (row.get("INFLIGHT") == "0") == (row.get("USED") == "0")
