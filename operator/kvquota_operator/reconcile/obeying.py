"""What pods make of the documents that they are sent.

Decides what is said of a document that a sidecar refuses, and of fields in one that a sidecar does not know, since it
is of another version (docs/adr/0006-versions-side-by-side.md). Pure.

Invariants:

1. Only what a fresh report says counts, and only while the document is still wanted.
2. What the operator notes in a config for itself, no sidecar has to know.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvquota_api.pod_config import FOR_THE_OPERATOR, PodConfig
from kvquota_api.usage import Rejected
from kvquota_operator.reconcile.plan import SecretWanted
from kvquota_operator.reconcile.pods import LivePod, PodsSeen
from kvquota_operator.reconcile.verdicts import Verdict, listed, pods_named


def rejected(pods: PodsSeen, configs: Mapping[str, PodConfig], secret: SecretWanted | None) -> Verdict | None:
    """Of the first pod that refuses what it should have in force; `configs`: by uid."""
    for live in pods.live:
        refusal = _refusal(live, configs.get(live.pod.uid), secret)
        if refusal is not None:
            return Verdict(
                "False",
                "ConfigRejected",
                f"the sidecar of pod {live.pod.name} refuses generation {refusal.generation} of its config and keeps"
                f" the last good one ({refusal.reason}): {refusal.message}. Correct what it names, or run the same"
                " version of operator and sidecar",
            )
    return None


def _refusal(live: LivePod, wanted: PodConfig | None, secret: SecretWanted | None) -> Rejected | None:
    if not live.fresh or live.report is None or live.report.rejected is None:
        return None
    config_taken = wanted is None or wanted.digest == live.report.in_force.config_digest
    identity_taken = secret is None or secret.identity.digest == live.report.in_force.identity_digest
    return None if config_taken and identity_taken else live.report.rejected


def partly_understood(pods: PodsSeen) -> Verdict | None:
    """Of all pods whose sidecars do not know a field of what they have in force."""
    unknown = {live.pod.name: fields for live in pods.live if (fields := _not_obeyed(live))}
    if not unknown:
        return None
    named = listed({field for found in unknown.values() for field in found})
    return Verdict(
        "False",
        "ConfigPartlyUnderstood",
        f"not known to the sidecar of {pods_named(unknown)}, and not enforced there:"
        f" {named}. All else of the config is in force. Roll these pods out again (kubectl rollout restart)"
        " with the sidecar of the operator's version",
    )


def _not_obeyed(live: LivePod) -> tuple[str, ...]:
    return tuple(field for field in live.in_force.unknown_fields if not _is_a_note(field)) if live.fresh else ()


def _is_a_note(field: str) -> bool:
    return any(field == note or field.startswith((f"{note}.", f"{note}[")) for note in FOR_THE_OPERATOR)
