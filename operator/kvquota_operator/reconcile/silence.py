"""What the silence of pods means.

Decides whether usage is observed, as far as pods report at all, and names those that left the selector. Pure.

Invariants:

1. A pod that is only starting is no reason to worry: it is asked for nothing yet.
2. Without a pod there is nothing to observe: Unknown, never False.
"""

from __future__ import annotations

from kvquota_operator.reconcile.pods import LivePod, PodsSeen
from kvquota_operator.reconcile.verdicts import Verdict, listed


def silence(pods: PodsSeen) -> Verdict | None:
    """Why the numbers of some pods are missing; None where all that should report do."""
    if not pods.live:
        return Verdict("Unknown", "NoPods", "no governed pod runs")
    if pods.stale:
        return Verdict("False", "PodsStale", _stale_message(pods.stale))
    if not pods.fresh:
        return Verdict("Unknown", "PodsStarting", "the governed pods are starting and have not reported yet")
    return None


def _stale_message(stale: tuple[LivePod, ...]) -> str:
    named = listed(each.pod.name for each in stale)
    cause = next((f" ({each.error})" for each in stale if each.error), "")
    return (
        f"no recent report from {named}{cause}: their numbers are in no sum. Check that the operator reaches the admin"
        " port of these pods and that their container kvquota runs"
    )


def left_the_selector(pods: PodsSeen) -> Verdict | None:
    """Pods that nobody asks any more, and that are there; None without any."""
    names = [live.pod.name for live in pods.leaving if live.pod.left]
    if not names:
        return None
    subject, are, it, its = (
        (f"pod {names[0]} has", "is", "it", "its")
        if len(names) == 1
        else (f"pods {listed(names)} have", "are", "them", "their")
    )
    return Verdict(
        "False",
        "PodLeft",
        f"{subject} lost the labels of the pool and {are} still there: no edit reaches {it}, and {its} parts of limits"
        f" over all pods are kept for {it}. Give {it} the labels back, or delete {it}",
    )
