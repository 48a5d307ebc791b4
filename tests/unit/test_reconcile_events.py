"""What a person is told, and when: only when it turns."""

from dataclasses import replace

import pytest

import reconcile_builders as make
from kvquota_api.usage import Counts, EngineRecent, Rejected
from kvquota_operator.reconcile.plan import EventWanted

TOO_LARGE = make.pool(memory__kvPool={"percent": 95})
OVER = (
    make.quota("search", age=0, kv={"soft": {"percent": 80}}),
    make.quota("batch", age=1, kv={"soft": {"percent": 40}}),
)


def after(first, **then):
    """The plan for `then`, once the plan for `first` was carried out."""
    before = make.observed(**first)
    stored = make.carried_out(before, make.reconcile(before, make.NOW, make.WALL))
    if "quotas" in then:
        statuses = {seen.quota.metadata.name: seen.status for seen in stored.quotas}
        then["quotas"] = tuple(
            replace(seen, status=statuses.get(seen.quota.metadata.name, {})) for seen in then["quotas"]
        )
    return make.reconcile(replace(stored, **then), make.NOW, make.LATER)


def rung(name):
    return make.reported(make.report(pool=make.pool_usage(rung=name)))


def told(plan):
    return [(event.kind, event.name, event.type, event.reason) for event in plan.events]


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        pytest.param({}, {}, [], id="nothing, where all is as it should be"),
        pytest.param(
            {}, {"pool": TOO_LARGE}, [("ModelPool", "llama-8b", "Warning", "PartitionTooLarge")], id="a bad plan"
        ),
        pytest.param(
            {"pool": make.pool(), "reports": make.reported(make.report(blocks=5_000))},
            {"reports": make.reported(make.report())},
            [("ModelPool", "llama-8b", "Normal", "Applied")],
            id="what was wrong is right again",
        ),
        pytest.param(
            {},
            {"quotas": make.seen(*OVER)},
            [
                ("TenantQuota", "search", "Warning", "Oversubscribed"),
                ("TenantQuota", "batch", "Warning", "Oversubscribed"),
            ],
            id="more promised than there is",
        ),
        pytest.param({"quotas": make.seen(*OVER)}, {}, [], id="not again while it stays so"),
        pytest.param(
            {"reports": make.reported(make.report(blocks=5_000))},
            {"reports": make.reported(make.report(block_tokens=32, blocks=5_000))},
            [("ModelPool", "llama-8b", "Warning", "BlockSizeDiffers")],
            id="another reason is news",
        ),
        pytest.param(
            {"reports": make.reported(make.report(blocks=5_000))},
            {"reports": make.reported(make.report(blocks=4_500))},
            [],
            id="another number is none",
        ),
        pytest.param(
            {},
            {"reports": make.reported(make.report(), age=60.0)},
            [("ModelPool", "llama-8b", "Warning", "PodsStale")],
            id="a silent pod is told once, not for every tenant",
        ),
        pytest.param(
            {},
            {"reports": rung("Shed")},
            [("ModelPool", "llama-8b", "Warning", "Shed")],
            id="a rung of the ladder",
        ),
        pytest.param(
            {"reports": rung("Shed")},
            {"reports": rung("Evict")},
            [("ModelPool", "llama-8b", "Warning", "Evict")],
            id="the next rung",
        ),
        pytest.param(
            {"reports": rung("Evict")},
            {"reports": rung("Normal")},
            [("ModelPool", "llama-8b", "Normal", "Normal")],
            id="down the ladder",
        ),
        pytest.param(
            {},
            {"reports": make.reported(make.report(make.tenant_usage("search", recent=Counts(guarantee_missed=1))))},
            [
                ("ModelPool", "llama-8b", "Warning", "GuaranteeMissed"),
                ("TenantQuota", "search", "Warning", "GuaranteeMissed"),
            ],
            id="a guarantee that was missed, of the pool and of the tenant",
        ),
        pytest.param(
            {"reports": make.reported(make.report(make.tenant_usage("search")))},
            {"reports": make.reported(make.report(make.tenant_usage("search", recent=Counts(evicted=9))))},
            [],
            id="nothing of single requests",
        ),
        pytest.param(
            {},
            {"reports": make.reported(make.report(recent=EngineRecent(finished=9, foreign=9)))},
            [("ModelPool", "llama-8b", "Warning", "SidecarBypassed")],
            id="traffic past the sidecar",
        ),
        pytest.param(
            {},
            {"reports": make.reported(make.report(state="Down", blocks=None))},
            [("ModelPool", "llama-8b", "Warning", "EngineDown")],
            id="a dead engine",
        ),
        pytest.param(
            {},
            {"pool": make.pool(model__revision="next")},
            [("ModelPool", "llama-8b", "Warning", "PlanChanged")],
            id="quotas that wait for a review",
        ),
        pytest.param(
            {},
            {
                "reports": make.reported(
                    make.report(rejected=Rejected(generation=1, reason="Invalid", message="tenants: too many"))
                )
            },
            [("ModelPool", "llama-8b", "Warning", "ConfigRejected")],
            id="a config that a sidecar refuses",
        ),
        pytest.param({}, {"pods": ()}, [], id="that pods are gone is nobody's fault"),
        pytest.param({"pods": ()}, {"pods": (make.pod(),)}, [], id="from unknown to good is no news"),
    ],
)
def test_what_is_told_when_it_turns(first, then, expected):
    assert told(after(first, **then)) == expected


def test_what_is_wrong_from_the_start_is_told():
    twins = make.seen(make.quota("a", tenant="search"), make.quota("b", tenant="search"))
    plan = make.decided(quotas=twins)
    assert plan.events == (
        EventWanted(
            kind="TenantQuota",
            name="b",
            uid="uid-b",
            type="Warning",
            reason="DuplicateTenant",
            message=make.condition(plan.quota_statuses["b"], "Ready")[2],
        ),
    )


def test_an_event_of_a_pool_has_its_uid_even_where_it_does_not_parse():
    (event,) = make.decided(pool=make.unread_pool(), quotas=()).events
    assert (event.kind, event.uid, event.reason) == ("ModelPool", "uid-pool", "InvalidSpec")


def test_an_event_says_what_the_condition_says():
    plan = make.decided(pool=TOO_LARGE, quotas=())
    (event,) = plan.events
    assert make.condition(plan.pool_status, "PlanValid") == ("False", event.reason, event.message)
