"""What is taken of a sidecar's report, however much is in it."""

import json

import msgspec
import pytest

import reconcile_builders as make
from kvquota_api.pod_config import DocumentError, PodConfig
from kvquota_api.usage import MAX_ACCOUNTS, TenantUsage, UsageReport, encode
from kvquota_operator.reading.reports import OTHERS_KEPT, read_report, relevant

CONFIG = make.decided().configs[0]  # its tenants are search and batch
NAMED = (make.tenant_usage("batch"), make.tenant_usage("search", reserved=3))


def others(count: int) -> tuple[TenantUsage, ...]:
    """Tenants without a quota, of which each holds a block more than the one before."""
    return tuple(make.tenant_usage(f"other-{number}", reserved=number) for number in range(count))


def test_a_report_is_read_as_it_was_written() -> None:
    report = make.report(*NAMED)
    assert read_report(encode(report)) == report


def test_a_tenant_that_is_named_twice_refuses_the_report() -> None:
    with pytest.raises(DocumentError, match="tenants: one is named twice"):
        read_report(encode(make.report(*NAMED, NAMED[0])))


@pytest.mark.parametrize(
    ("tenants", "says"),
    [
        pytest.param([0] * (MAX_ACCOUNTS + 1), "Expected `array` of length <= 20000", id="of too many tenants"),
        pytest.param([0] * MAX_ACCOUNTS, "Expected `object`, got `int`", id="of as many as there may be"),
        pytest.param(0, "Expected `array`, got `int`", id="without a list of them"),
    ],
)
def test_a_large_report_is_read_only_where_its_tenants_are_not_too_many(tenants: object, says: str) -> None:
    """What they say is not looked at before: here it is nothing that could be read."""
    document = {**json.loads(encode(make.report())), "tenants": tenants, "padding": "x" * 2**20}
    with pytest.raises(DocumentError, match=f"not a valid UsageReport: {says}"):
        read_report(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("tenants", "config", "kept"),
    [
        pytest.param((*NAMED, *others(OTHERS_KEPT)), CONFIG, (*NAMED, *others(OTHERS_KEPT)), id="all where few"),
        pytest.param(
            (*others(OTHERS_KEPT + 7), *NAMED),
            CONFIG,
            (*others(OTHERS_KEPT + 7)[7:], *NAMED),
            id="of many those that hold most, and those that the config names",
        ),
        pytest.param(others(OTHERS_KEPT + 7), None, others(OTHERS_KEPT + 7), id="all where no config is known"),
    ],
)
def test_which_tenants_are_kept(
    tenants: tuple[TenantUsage, ...], config: PodConfig | None, kept: tuple[TenantUsage, ...]
) -> None:
    report = make.report(*tenants)
    expected: UsageReport = msgspec.structs.replace(report, tenants=kept)
    assert relevant(report, config) == expected
