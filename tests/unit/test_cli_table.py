"""Tables as `kubectl get` prints them, from the columns that the CRD declares."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kvquota_api.crd import MODEL_POOLS, TENANT_QUOTAS, custom_resource_definition
from kvquota_cli.tables.ages import age, human_duration
from kvquota_cli.tables.json_path import PathError, find, parse_path
from kvquota_cli.tables.table import Table, columns_of, printed, table_from_server, table_of

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
CONTENT = {
    "metadata": {"name": "q", "labels": {"a.b/c": "x"}},
    "status": {
        "used": {"tokens": 0},
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "Degraded", "status": "False"}],
    },
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        pytest.param(".status.used.tokens", 0, id="a field, 0 is a value"),
        pytest.param(".status.absent.tokens", None, id="an absent field"),
        pytest.param(".status.used.tokens.more", None, id="a field of a number"),
        pytest.param(".metadata.labels['a.b/c']", "x", id="a quoted field"),
        pytest.param(".status.conditions[1].type", "Degraded", id="an index"),
        pytest.param(".status.conditions[2].type", None, id="an index beyond the end"),
        pytest.param(".status.used[0]", None, id="an index into a mapping"),
        pytest.param('.status.conditions[?(@.type=="Ready")].status', "True", id="a filter"),
        pytest.param(".status.conditions[?(@.type == 'Degraded')].status", "False", id="a filter with single quotes"),
        pytest.param('.status.conditions[?(@.type=="Absent")].status', None, id="a filter that nothing meets"),
        pytest.param('.status.used[?(@.type=="Ready")].status', None, id="a filter on a mapping"),
    ],
)
def test_what_a_path_finds(path: str, found: Any) -> None:
    assert find(parse_path(path), CONTENT) == found


@pytest.mark.parametrize("path", ["status", ".status..x", ".items[*].x", ".a[?(@.b>1)]", ".a[-1]", "{.a}", "..a"])
def test_a_path_of_more_than_columns_need_is_refused_when_it_is_read(path: str) -> None:
    with pytest.raises(PathError, match="cannot read the JSONPath"):
        parse_path(path)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-2, "<invalid>"), (-1, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (599, "9m59s"),
        (600, "10m"), (601, "10m"), (10_799, "179m"), (10_800, "3h"), (10_860, "3h1m"), (28_740, "7h59m"),
        (28_860, "8h"), (172_799, "47h"), (172_800, "2d"), (176_400, "2d1h"), (691_199, "7d23h"), (691_200, "8d"),
        (63_071_999, "729d"), (63_072_000, "2y"), (63_158_400, "2y1d"), (252_288_000, "8y"), (252_460_800, "8y"),
    ],
)  # fmt: skip
def test_ages_are_written_as_kubectl_writes_them(seconds: int, text: str) -> None:
    assert human_duration(seconds) == text
    assert age((NOW - timedelta(seconds=seconds)).isoformat(), NOW) == text


@pytest.mark.parametrize("written", ["", "yesterday", "2026-11-01T11:59:00"])
def test_what_is_no_time_has_no_age(written: str) -> None:
    assert age(written, NOW) == "<invalid>"


PRINTER_COLUMNS = [
    {"name": "Tenant", "type": "string", "jsonPath": ".spec.tenant"},
    {"name": "Used", "type": "integer", "jsonPath": ".status.used.tokens"},
    {"name": "Wide", "type": "string", "jsonPath": ".spec.x", "priority": 1},
    {"name": "Ready", "type": "boolean", "jsonPath": ".status.ready"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]


def quota(
    name: str, tenant: str, status: dict[str, Any], created: str | None = "2026-11-01T11:59:15Z"
) -> dict[str, Any]:
    return {"metadata": {"name": name, "creationTimestamp": created}, "spec": {"tenant": tenant}, "status": status}


def test_what_is_absent_is_an_empty_cell_and_0_is_0() -> None:
    objects = [quota("a", "search", {"used": {"tokens": 0}, "ready": True}), quota("b", "batch", {}, created=None)]
    assert table_of(columns_of(PRINTER_COLUMNS), objects, NOW) == Table(
        ("NAME", "TENANT", "USED", "READY", "AGE"), (("a", "search", "0", "true", "45s"), ("b", "batch", "", "", ""))
    )


def test_a_wide_table_has_the_columns_of_a_priority_above_0_too() -> None:
    assert [column.name for column in columns_of(PRINTER_COLUMNS, wide=True)][1:] == [
        each["name"] for each in PRINTER_COLUMNS
    ]


def test_the_table_of_an_api_server_is_taken_as_it_is() -> None:
    definitions = [{"name": "Name", "type": "string"}, {"name": "X", "priority": 1}, {"name": "Age", "priority": 0}]
    answer = {"columnDefinitions": definitions, "rows": [{"cells": ["a", 1, "45s"]}, {"cells": [7, None, None]}]}
    assert table_from_server(answer) == Table(("NAME", "AGE"), (("a", "45s"), ("7", "")))


def test_columns_are_padded_by_three_spaces_to_at_least_six_characters() -> None:
    table = Table(("NAME", "X", "AGE"), (("a-long-name", "1", "3s"), ("b", "", "")))
    assert printed(table) == (
        "NAME          X     AGE",
        "a-long-name   1     3s",
        "b                   ",
    )


def test_the_columns_of_the_crds_can_all_be_followed_and_are_those_that_people_look_for() -> None:
    quotas = custom_resource_definition(TENANT_QUOTAS)["spec"]["versions"][0]["additionalPrinterColumns"]
    assert table_of(columns_of(quotas), [], NOW).header == (
        "NAME", "TENANT", "POOL", "SOFT", "HARD", "USED", "INFLIGHT", "REJECTED-10M", "EVICTED-10M", "STATE", "AGE"
    )  # fmt: skip
    pools = custom_resource_definition(MODEL_POOLS)["spec"]["versions"][0]["additionalPrinterColumns"]
    assert len(columns_of(pools, wide=True)) == len(MODEL_POOLS.columns) + 1


def test_a_table_without_rows_is_its_header() -> None:
    assert printed(Table(("NAME", "AGE"), ())) == ("NAME   AGE",)


QUOTAS = Table(
    ("NAME", "TENANT", "POOL", "SOFT", "STATE", "AGE"), (("flood", "flood", "demo", "832", "Refusing", "14s"),)
)


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (47, ("NAME    TENANT   POOL   SOFT   STATE      AGE", "flood   flood    demo   832    Refusing   14s")),
        (44, ("NAME   TENANT  POOL  SOFT  STATE     AGE", "flood  flood   demo  832   Refusing  14s")),
        (34, ("NAME   TENANT  SOFT  STATE     AGE", "flood  flood   832   Refusing  14s")),
        (33, ("NAME  TENANT SOFT STATE    AGE", "flood flood  832  Refusing 14s")),
        (10, ("NAME  SOFT STATE    AGE", "flood 832  Refusing 14s")),
    ],
)
def test_a_wide_table_loses_its_gaps_and_then_its_pool_before_anything_is_cut(
    columns: int, lines: tuple[str, str]
) -> None:
    assert printed(QUOTAS, columns) == lines
