"""What is taken of a sidecar's report, however much is in it.

Decides which reports are read, and which of their tenants are kept. Pure. Invariants:

1. A report that names a tenant twice is refused: no pod says more of a tenant than once.
2. A report of too many tenants is refused before they are read.
3. What the pod's config names is kept. Of the other tenants, whose quotas are gone, OTHERS_KEPT are: those whose work
   holds most, since what is still held is not free.
"""

from __future__ import annotations

from heapq import nlargest
from typing import Annotated, Final

import msgspec

from kvquota_api import usage
from kvquota_api.pod_config import DocumentError, PodConfig
from kvquota_api.usage import MAX_ACCOUNTS, UsageReport

OTHERS_KEPT: Final = 1_000  # more tenants than an engine has requests at once
LARGE_BYTES: Final = 2**20  # of a report: MAX_ACCOUNTS tenants take more, however little is said of each


class _Outline(msgspec.Struct):
    """A report of which nothing is read but how many tenants it has."""

    tenants: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_ACCOUNTS)] = []


def read_report(data: bytes) -> UsageReport:
    """Read a usage report. Raises DocumentError that names the field."""
    if len(data) > LARGE_BYTES:
        _look_at(data)
    report = usage.decode_report(data)
    if len({tenant.id for tenant in report.tenants}) < len(report.tenants):
        raise DocumentError("tenants: one is named twice")
    return report


def _look_at(data: bytes) -> None:
    try:
        msgspec.json.decode(data, type=_Outline)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DocumentError(f"not a valid {UsageReport.__name__}: {error}") from error


def relevant(report: UsageReport, config: PodConfig | None) -> UsageReport:
    """`report` without what nobody asks for; `config`: what the pod should enforce, None where that is not known."""
    if config is None or len(report.tenants) <= len(config.tenants) + OTHERS_KEPT:
        return report
    named = {share.id for share in config.tenants}
    others = [tenant for tenant in report.tenants if tenant.id not in named]
    kept = {tenant.id for tenant in nlargest(OTHERS_KEPT, others, key=lambda each: (each.reserved, each.in_flight))}
    tenants = tuple(each for each in report.tenants if each.id in named or each.id in kept)
    return msgspec.structs.replace(report, tenants=tenants)
