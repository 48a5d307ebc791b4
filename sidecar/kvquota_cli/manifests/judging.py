"""What is wrong with one object of the files, whatever the others are.

Decides which objects are ours and finds the line of every problem; the judgement on resources is that of
`kvquota_api.validation`, so what is refused here is what an API server refuses. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from kvquota_api.meta import API_VERSION, GROUP
from kvquota_api.validation import KINDS, Problem, check_update, parse_model_pool, parse_tenant_quota, validate
from kvquota_cli.manifests.collection import Manifest
from kvquota_cli.manifests.places import FieldPath, Finding
from kvquota_cli.manifests.secrets import config_map_entries, secret_entries

SECRET: Final = "Secret"  # noqa: S105 - the name of a kind
CONFIG_MAP: Final = "ConfigMap"

_STEP: Final = re.compile(r"\[([0-9]+)\]|([^.\[\]]+)")


def is_ours(manifest: Manifest) -> bool:
    """Whether the object means anything to kvquota. A kind of another API group with the same name does not."""
    if manifest.key.kind in (SECRET, CONFIG_MAP):
        return manifest.api_version == "v1"
    return manifest.api_version.partition("/")[0] == GROUP


def judge(manifest: Manifest) -> tuple[Finding, ...]:
    """What is wrong with an object that is ours; empty when it is good."""
    if manifest.key.kind == SECRET:
        return _of(manifest, secret_entries(manifest.document)[1])
    if manifest.key.kind == CONFIG_MAP:
        return _of(manifest, config_map_entries(manifest.document)[1])
    return found_at(manifest, _problems(manifest))


def judge_change(before: Mapping[str, Any], manifest: Manifest) -> tuple[Finding, ...]:
    """What a good manifest must not change of the good object `before` that it replaces."""
    parse = {"ModelPool": parse_model_pool, "TenantQuota": parse_tenant_quota}.get(manifest.key.kind)
    if parse is None:
        return ()
    old, new = parse(before), parse(manifest.document.content)
    return found_at(manifest, check_update(old, new))


def found_at(manifest: Manifest, problems: list[Problem]) -> tuple[Finding, ...]:
    """Problems of the contract as findings, each at its line."""
    document = manifest.document
    return tuple(
        Finding(document.at(*steps_of(each.path)), each.message, str(manifest.key), each.path) for each in problems
    )


def steps_of(path: str) -> FieldPath:
    """The steps of a written path: spec.tiers[0].kv. A key with dots in it becomes several steps."""
    return tuple(int(index) if index else name for index, name in _STEP.findall(path))


def _problems(manifest: Manifest) -> list[Problem]:
    if manifest.key.kind not in KINDS:
        return [Problem("kind", f"{manifest.key.kind} is no kind of {API_VERSION}: it is one of {', '.join(KINDS)}")]
    return validate(manifest.document.content)


def _of(manifest: Manifest, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    return tuple(Finding(each.place, each.message, str(manifest.key), each.field) for each in findings)
