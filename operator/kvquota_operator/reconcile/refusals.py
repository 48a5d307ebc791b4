"""What the cluster does not let the operator store.

Decides what is said of durable copies and of a pool's Secret that the API server refuses each time. Pure.

Invariants:

1. The API server's own sentence is told, cut where it is longer than a person reads.
2. One sentence stands for all pods: what refuses one of them mostly refuses the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvquota_operator.reconcile.manifests import pool_secret_name
from kvquota_operator.reconcile.verdicts import Verdict, pods_named

LONGEST_SENTENCE: Final = 400  # characters: policies name the rule and the field in fewer


def copy_refused(pool: str, refused: Mapping[str, str], secret_refused: str | None) -> Verdict | None:
    """`refused`: what was said, by the name of the pod; `secret_refused`: what was said to the Secret, if it was."""
    told = [] if secret_refused is None else [f"the Secret {pool_secret_name(pool)}: {_cut(secret_refused)}"]
    if refused:
        first = refused[min(refused)]
        told.append(f"the config of {pods_named(refused)}: {_cut(first)}")
    if not told:
        return None
    return Verdict(
        "False",
        "CopyRefused",
        f"the cluster refuses to store {'; and '.join(told)}. A sidecar that starts anew gets what was stored before,"
        " and parts of a quota with scope Pool are given to no pod before they are stored. Let the operator write it:"
        " change the policy, quota or right that stands in the way, and delete an object that is immutable or somebody"
        " else's, so that it is made anew",
    )


def _cut(sentence: str) -> str:
    return sentence if len(sentence) <= LONGEST_SENTENCE else f"{sentence[: LONGEST_SENTENCE - 1]}…"
