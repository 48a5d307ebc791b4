"""What the sidecars say of their engines, and what a person is to do about it.

Decides the condition TrafficGoverned, what the silence of an engine means, the advice on engines, and how much of the
prompts the engines found in their prefix caches. Pure.

Invariants:

1. Only what an engine has counted itself says that traffic went past its sidecar, and a claim of a pod is believed up
   to what its engine has finished: what nobody counted is Unknown.
2. An engine that is starting is no reason to worry: only that of a ready pod should answer.
3. A share is told in steps, so that no status changes with every request.

It does not know who sent what went past.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kvquota_api.pool_status import Advice
from kvquota_api.usage import EngineRecent, UsageReport
from kvquota_operator.reconcile.pods import LivePod, PodsSeen
from kvquota_operator.reconcile.usage import hit_rate_percent
from kvquota_operator.reconcile.verdicts import Verdict, listed, pods_named

ENGINE_DOWN: Final = "EngineDown"
FOREIGN_MIN: Final = 5  # sequences in ten minutes: fewer are somebody who looked whether the engine is there
STEPS: Final = (1, 2, 5, 10, 20, 50, 75, 90)  # percent: what a share is told to be at least
INACCURATE_PERCENT: Final = 25  # of a prompt, at the median: what a person would leave as room on a quota

_Reports = list[tuple[LivePod, UsageReport]]


def traffic_governed(pods: PodsSeen) -> Verdict:
    """Whether the engines serve only what their sidecars have sent them."""
    counted = [(each, *_served(report.engine.recent)) for each, report in _fresh(pods)]
    known = [(each, finished, foreign) for each, finished, foreign in counted if finished is not None]
    if not known:
        return Verdict("Unknown", "NotCounted", "no engine that reports says how many requests it has served")
    foreign = sum(each for _, _, each in known)
    percent = _step(foreign, sum(finished for _, finished, _ in known))
    if foreign < FOREIGN_MIN or percent is None:
        return Verdict("True", "AllSeen", "the engines served nothing that their sidecars did not see")
    past = listed(each.pod.name for each, _, passed in known if passed)
    return Verdict(
        "False",
        "SidecarBypassed",
        f"at least {percent} % of the requests that the engines served in the last ten minutes did not come through the"
        f" sidecar (pods {past}): no quota holds for them, and they take memory that tenants were promised. Start the"
        " engine with --host 127.0.0.1, and lead every client to the port that the sidecar serves",
    )


def _served(recent: EngineRecent) -> tuple[int | None, int]:
    """What the engine has finished, and how much of it went past the sidecar."""
    if recent.finished is None or recent.foreign is None:
        return None, 0
    return recent.finished, min(recent.foreign, recent.finished)


def _step(part: int, whole: int) -> int | None:
    """The largest step that `part` of `whole` reaches."""
    return max((step for step in STEPS if part * 100 >= step * whole), default=None)


def engine_silence(pods: PodsSeen) -> Verdict | None:
    """Why an engine that should serve is not to be counted on; None where all answer and say what they use."""
    ready = [(each, report) for each, report in _fresh(pods) if each.pod.ready and report.engine.age_seconds is None]
    down = [each for each, report in ready if report.engine.state == "Down"]
    if down:
        return Verdict(
            "False",
            ENGINE_DOWN,
            f"the engine of {_named(down)} has not answered its sidecar for ten seconds or more, and its clients get"
            " 502 engine_error, though the pod is Ready: look at the log of the engine's container, and give that a"
            " readiness probe which asks the engine",
        )
    silent = [each for each, report in _fresh(pods) if each.pod.ready and _says_nothing(report)]
    if not silent:
        return None
    return Verdict(
        "False",
        "EngineSilent",
        f"the engine of {_named(silent)} answers and does not say how much of its KV cache is in use, so room is by the"
        " requests that the sidecar knows alone, and guarantees may be missed: see that GET /metrics of the engine"
        " answers within 2 s and has its usage (SGLang and llama.cpp need --enable-metrics and --metrics)",
    )


def _says_nothing(report: UsageReport) -> bool:
    engine = report.engine
    is_new = engine.state == "Unknown" and engine.age_seconds is not None  # nobody has asked it for long enough
    known = is_new or engine.state == "Down" or engine.used_blocks is not None
    return report.pool is not None and not report.pool.gauge_is_fresh and not known


def engine_advice(pods: PodsSeen) -> Iterator[Advice]:
    """What would help, by what the reports say of their engines."""
    reports = _fresh(pods)
    lost = [each for each, report in reports if report.engine.aborts_lost]
    if lost:
        yield Advice(
            reason="AbortsLost",
            message=f"the engine of {_named(lost)} goes on with requests whose connections are closed: what is evicted"
            " or left by its client keeps its memory to the end, and guarantees wait for it. In vLLM the cause is a"
            " middleware (--middleware) that does not pass on that a client has gone: take it out, or update vLLM",
        )
    inaccurate = [each for each, report in reports if _is_inaccurate(report)]
    if inaccurate:
        yield Advice(
            reason="EstimateInaccurate",
            message=f"half of the last prompts on {_named(inaccurate)} were estimated wrong by {INACCURATE_PERCENT} %"
            " or more before the engine had counted them, so requests near a limit may be refused too early: leave that"
            " much room in the hards, and state in spec.model.media what images, audio and videos cost",
        )


def _is_inaccurate(report: UsageReport) -> bool:
    error = None if report.pool is None else report.pool.estimate_error_percent
    return error is not None and error >= INACCURATE_PERCENT


def prefix_hit_rate_percent(reports: Iterable[UsageReport]) -> int | None:
    """Of the prompt tokens of the last ten minutes, how many the engines found; None where they looked for none."""
    counts = [(report.engine.recent.prompt_tokens, report.engine.recent.cached_tokens) for report in reports]
    return hit_rate_percent((asked, found) for asked, found in counts if asked is not None and found is not None)


def _fresh(pods: PodsSeen) -> _Reports:
    return [(each, each.report) for each in pods.live if each.fresh and each.report is not None]


def _named(pods: list[LivePod]) -> str:
    return pods_named([each.pod.name for each in pods])
