"""`kvquota render`: what would a pod get?"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
import yaml

from kvquota_cli.checking import check
from kvquota_cli.errors import ExitCode
from kvquota_cli.manifests.files import expand, read_all
from kvquota_cli.manifests.last_good import InForce
from kvquota_cli.manifests.places import Finding
from kvquota_cli.rendering import Rendered, Wish, render
from kvquota_operator.reconcile.manifests import config_map


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print the config. PROBLEM when something is wrong in the manifests. Raises CliError when there is none."""
    documents, findings = read_all(expand([arguments.manifests]))
    force, now = InForce(documents, findings), datetime.now(UTC)
    namespace = arguments.namespace or "default"
    verdict = asyncio.run(check(force, namespace, now))
    _tell(verdict.findings)
    rendered = asyncio.run(render(force, Wish(arguments.pod, namespace, arguments.pool), now))
    _tell(rendered.findings)
    print(_as_config_map(rendered) if arguments.output == "yaml" else _as_config(rendered))
    return ExitCode.OK if verdict.good and not rendered.findings else ExitCode.PROBLEM


def _tell(findings: Iterable[Finding]) -> None:
    for finding in findings:
        print(finding, file=sys.stderr)


def _as_config(rendered: Rendered) -> str:
    return json.dumps(msgspec.to_builtins(rendered.config), indent=2, sort_keys=True)


def _as_config_map(rendered: Rendered) -> str:
    manifest = config_map(rendered.config, rendered.config_map)
    return yaml.safe_dump(manifest, sort_keys=False, width=120, allow_unicode=True).rstrip()
