"""`kvquota check`: are these manifests right?"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from kvquota_cli.checking import Verdict, check
from kvquota_cli.errors import CliError, ExitCode
from kvquota_cli.manifests.files import expand, read_all
from kvquota_cli.manifests.last_good import InForce
from kvquota_cli.manifests.places import Finding

_STDIN: Final = Path("/dev/stdin")


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print the findings. PROBLEM when one of them is an error. Raises CliError when there is nothing to check."""
    paths = [_STDIN if path == Path("-") else path for path in arguments.paths]
    documents, findings = read_all(expand(paths))
    verdict = asyncio.run(check(InForce(documents, findings), arguments.namespace, datetime.now(UTC)))
    if verdict.good and not verdict.checked:
        for finding in verdict.findings:
            print(finding, file=sys.stderr)
        raise CliError("no ModelPool, TenantQuota, Secret or ConfigMap is in these files: name files that have some")
    print(_as_json(verdict) if arguments.output == "json" else _as_text(verdict))
    return ExitCode.OK if verdict.good else ExitCode.PROBLEM


def _as_text(verdict: Verdict) -> str:
    return "\n".join([*map(str, verdict.findings), _summary(verdict)])


def _summary(verdict: Verdict) -> str:
    severities = [each.severity for each in verdict.findings]
    result = ", ".join(
        f"{severities.count(severity)} {severity}{'s' if severities.count(severity) > 1 else ''}"
        for severity in ("error", "warning")
        if severity in severities
    )
    over = f"; passed over {_counted(verdict.passed_over)}" if verdict.passed_over else ""
    checked = f" in {_counted(verdict.checked)}" if verdict.checked else "; no object could be checked"
    return f"{result or 'all good'}{checked}{over}"


def _counted(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}{'s' if count > 1 and kind.isalpha() else ''}" for kind, count in kinds.items())


def _as_json(verdict: Verdict) -> str:
    answer = {
        "findings": [_finding(each) for each in verdict.findings],
        "checked": verdict.checked,
        "passedOver": verdict.passed_over,
    }
    return json.dumps(answer, indent=2)


def _finding(finding: Finding) -> dict[str, str | int]:
    return {
        "file": finding.place.file,
        "line": finding.place.line,
        "severity": finding.severity,
        "object": finding.object,
        "field": finding.field,
        "message": finding.message,
    }
