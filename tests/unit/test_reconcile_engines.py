"""What the sidecars say of their engines: traffic that went past them, engines that are silent, advice, hit rates."""

import pytest

import reconcile_builders as make
from kvquota_api.usage import EngineRecent

PODS = (make.pod("a"), make.pod("b"))
STALE = make.pool_usage(gauge_is_fresh=False)


def status(*reports, pods=PODS):
    """The status of a pool whose pods a, b, ... say this; None: the pod has not said anything for a minute."""
    said = {}
    for name, report in zip("abcdefgh", reports, strict=False):
        said |= make.reported(report or make.report(), name=name, age=0.0 if report else 60.0)
    return make.decided(pods=pods, reports=said).pool_status


def did(finished=None, foreign=None, **tokens):
    return make.report(recent=EngineRecent(finished=finished, foreign=foreign, **tokens))


NOT_COUNTED = ("Unknown", "NotCounted", "no engine that reports says how many requests it has served")
ALL_SEEN = ("True", "AllSeen", "the engines served nothing that their sidecars did not see")


def bypassed(percent, pods):
    return (
        "False",
        "SidecarBypassed",
        f"at least {percent} % of the requests that the engines served in the last ten minutes did not come through the"
        f" sidecar (pods {pods}): no quota holds for them, and they take memory that tenants were promised. Start the"
        " engine with --host 127.0.0.1, and lead every client to the port that the sidecar serves",
    )


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        pytest.param([], NOT_COUNTED, id="nobody reports"),
        pytest.param([did(), did(finished=7)], NOT_COUNTED, id="engines that do not count"),
        pytest.param([did(0, 0)], ALL_SEEN, id="an idle engine"),
        pytest.param([did(100, 0), did()], ALL_SEEN, id="all that is counted was seen"),
        pytest.param([did(8, 4), did(4, 0)], ALL_SEEN, id="a few are somebody who looked"),
        pytest.param([did(10_000, 60)], ALL_SEEN, id="less than a percent"),
        pytest.param([did(600, 5), did(0, 1)], ALL_SEEN, id="a claim is believed up to what was finished"),
        pytest.param([did(100, 0), did(100, 5)], bypassed(2, "b"), id="more than a few"),
        pytest.param([did(50, 30), did(50, 25)], bypassed(50, "a, b"), id="told in steps"),
        pytest.param([did(9, 9)], bypassed(90, "a"), id="nothing came by"),
        pytest.param([did(100, 0), None], ALL_SEEN, id="what a silent pod said is old"),
    ],
)
def test_traffic_governed(reports, expected):
    assert make.condition(status(*reports), "TrafficGoverned") == expected


REPORTED = ("True", "Reported", "every governed pod reports")
DOWN = (
    "False",
    "EngineDown",
    "the engine of pod b has not answered its sidecar for ten seconds or more, and its clients get 502 engine_error,"
    " though the pod is Ready: look at the log of the engine's container, and give that a readiness probe which asks"
    " the engine",
)
SILENT = (
    "False",
    "EngineSilent",
    "the engine of pods a, b answers and does not say how much of its KV cache is in use, so room is by the requests"
    " that the sidecar knows alone, and guarantees may be missed: see that GET /metrics of the engine answers within 2"
    " s and has its usage (SGLang and llama.cpp need --enable-metrics and --metrics)",
)


@pytest.mark.parametrize(
    ("reports", "pods", "expected"),
    [
        pytest.param([make.report(), make.report()], PODS, REPORTED, id="engines that answer"),
        pytest.param([make.report(), make.report(state="Down", blocks=None)], PODS, DOWN, id="one is dead"),
        pytest.param([make.report(), make.report(state="Down", age_seconds=3.0)], PODS, REPORTED, id="one is late"),
        pytest.param(
            [make.report(), make.report(pool=STALE, state="Down", age_seconds=3.0)],
            PODS,
            REPORTED,
            id="one is late, and answers nothing that could lack its usage",
        ),
        pytest.param(
            [make.report(), make.report(pool=STALE, state="Unknown", age_seconds=0.5, blocks=None)],
            PODS,
            REPORTED,
            id="one whose sidecar has just started",
        ),
        pytest.param(
            [make.report(), make.report(state="Down", blocks=None)],
            (make.pod("a"), make.pod("b", ready=False)),
            REPORTED,
            id="one is starting",
        ),
        pytest.param(
            [make.report(pool=STALE), make.report(pool=STALE)], PODS, SILENT, id="they do not say their usage"
        ),
        pytest.param(
            [make.report(), make.report(pool=STALE, used_blocks=5, age_seconds=3.0)],
            PODS,
            REPORTED,
            id="one is slow to say it",
        ),
        pytest.param(
            [make.report(), make.report(pool=STALE)],
            (make.pod("a"), make.pod("b", ready=False)),
            REPORTED,
            id="one is starting and says nothing yet",
        ),
    ],
)
def test_engines_that_are_silent(reports, pods, expected):
    assert make.condition(status(*reports, pods=pods), "UsageObserved") == expected


def advice(*reports):
    return [each for each in status(*reports).get("advice", []) if each["reason"] != "QuantiseKvCache"]


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        pytest.param([make.report(aborts_lost=False), make.report()], [], id="nothing to say"),
        pytest.param(
            [make.report(), make.report(aborts_lost=True)],
            [
                {
                    "reason": "AbortsLost",
                    "message": "the engine of pod b goes on with requests whose connections are closed: what is evicted"
                    " or left by its client keeps its memory to the end, and guarantees wait for it. In vLLM the cause"
                    " is a middleware (--middleware) that does not pass on that a client has gone: take it out, or"
                    " update vLLM",
                }
            ],
            id="an engine that goes on",
        ),
        pytest.param(
            [
                make.report(pool=make.pool_usage(estimate_error_percent=25.0)),
                make.report(pool=make.pool_usage(estimate_error_percent=24.9)),
            ],
            [
                {
                    "reason": "EstimateInaccurate",
                    "message": "half of the last prompts on pod a were estimated wrong by 25 % or more before the"
                    " engine had counted them, so requests near a limit may be refused too early: leave that much room"
                    " in the hards, and state in spec.model.media what images, audio and videos cost",
                }
            ],
            id="an estimate that is wrong",
        ),
        pytest.param([None, None], [], id="nothing of what is old"),
    ],
)
def test_advice_on_engines(reports, expected):
    assert advice(*reports) == expected


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        pytest.param([did(), did(prompt_tokens=5)], None, id="nobody counts"),
        pytest.param([did(prompt_tokens=0, cached_tokens=0)], None, id="nothing was looked up"),
        pytest.param(
            [did(prompt_tokens=900, cached_tokens=300), did(prompt_tokens=100, cached_tokens=100), did()],
            40,
            id="over all that count",
        ),
        pytest.param([did(prompt_tokens=10, cached_tokens=99)], 100, id="a claim is believed up to what was looked up"),
        pytest.param([did(prompt_tokens=10, cached_tokens=0)], 0, id="nothing was found"),
        pytest.param([None, did(prompt_tokens=10, cached_tokens=5)], 50, id="what is old is in no sum"),
    ],
)
def test_prefix_hit_rate(reports, expected):
    assert status(*reports, pods=(*PODS, make.pod("c"))).get("prefixHitRatePercent") == expected
