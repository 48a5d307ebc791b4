"""Which quotas count, and as what: duplicates, tiers that are missing, objects that do not parse."""

from dataclasses import replace

import msgspec
import pytest

import reconcile_builders as make
from kvquota_operator.reconcile import standing as rules
from kvquota_operator.reconcile.standing import standings

GONE = "The share that the pods have of it stays in force until this is corrected"
NOTHING = "It has no share of the pool until this is corrected"


def ready(plan, name):
    return make.condition(plan.quota_statuses[name], "Ready")


def after(*quotas, **fields):
    """What was observed once these quotas were in force on the pod, with fields changed since."""
    before = make.observed(quotas=make.seen(*quotas))
    stored = make.carried_out(before, make.reconcile(before, make.NOW, make.WALL))
    return make.reconcile(replace(stored, **fields), make.NOW, make.LATER)


def test_the_oldest_quota_of_a_tenant_wins():
    young = make.quota("a-young", tenant="search", age=9, kv={"hard": {"percent": 9}})
    old = make.quota("old", tenant="search", age=1, kv={"hard": {"percent": 50}})
    plan = make.decided(quotas=make.seen(young, old))
    assert make.hards(plan.configs[0]) == {"old": 9_215}
    assert ready(plan, "a-young") == (
        "False",
        "DuplicateTenant",
        "tenant search already has a share of ModelPool llama-8b by the older TenantQuota old, which stays in force:"
        " change that one, or delete one of the two",
    )


def test_of_two_quotas_of_one_age_the_first_by_name_wins():
    plan = make.decided(quotas=make.seen(make.quota("b", tenant="search"), make.quota("a", tenant="search")))
    assert [share.quota for share in plan.configs[0].tenants] == ["a"]


def test_a_quota_without_creation_time_counts_as_the_oldest():
    ageless = make.quota("z", tenant="search")
    ageless = ageless.model_copy(update={"metadata": ageless.metadata.model_copy(update={"creation_timestamp": None})})
    plan = make.decided(quotas=make.seen(make.quota("a", tenant="search"), ageless))
    assert [share.quota for share in plan.configs[0].tenants] == ["z"]


def test_a_duplicate_has_no_numbers():
    plan = make.decided(quotas=make.seen(make.quota("a", tenant="search"), make.quota("b", tenant="search")))
    status = plan.quota_statuses["b"]
    assert set(status) == {"observedGeneration", "conditions", "state"}
    assert make.condition(status, "QuotaWithinCapacity")[:2] == ("Unknown", "NoShare")
    assert make.condition(status, "UsageObserved")[:2] == ("Unknown", "NoShare")


@pytest.mark.parametrize(
    ("tiers", "known"),
    [
        pytest.param([{"name": "gold"}, {"name": "free"}], "free, gold", id="the tiers of the pool are listed"),
        pytest.param([], "none", id="a pool without tiers"),
    ],
)
def test_a_tier_that_is_not_there(tiers, known):
    plan = make.decided(pool=make.pool(tiers=tiers), quotas=make.seen(make.quota("search", tier="silver")))
    assert plan.configs[0].tenants == ()
    assert ready(plan, "search") == (
        "False",
        "TierNotFound",
        f"spec.tier: ModelPool llama-8b has no tier silver (it has: {known}): name one of those, or add the tier to the"
        f" pool. {NOTHING}",
    )


def test_a_tier_that_is_taken_away_leaves_the_share_in_force():
    quota = make.quota("search", tier="gold", scope="Pool")
    plan = after(quota, pool=make.pool(tiers=[]))
    assert (make.softs(plan.configs[0]), make.hards(plan.configs[0])) == ({"search": 7_372}, {"search": 11_058})
    assert plan.configs[0].generation == 1
    assert ready(plan, "search")[:2] == ("False", "TierNotFound")
    assert ready(plan, "search")[2].endswith(GONE)


def test_a_quota_that_does_not_parse_any_more_keeps_its_share():
    quota = make.quota("search", kv={"soft": {"percent": 40}, "hard": {"percent": 60}})
    plan = after(quota, quotas=(), invalid=(make.unread("search"),))
    assert make.softs(plan.configs[0]) == {"search": 7_372}
    assert plan.configs[0].generation == 1
    assert ready(plan, "search") == ("False", "InvalidSpec", f"spec.priority: 2000 must be at most 1000. {GONE}")
    assert plan.quota_statuses["search"]["soft"] == {"blocks": 7_372, "tokens": 117_952}
    assert plan.quota_statuses["search"]["observedGeneration"] == 2


def test_a_quota_that_never_parsed_has_no_share():
    plan = make.decided(quotas=(), invalid=(make.unread("search"),))
    assert plan.configs[0].tenants == ()
    assert ready(plan, "search") == ("False", "InvalidSpec", f"spec.priority: 2000 must be at most 1000. {NOTHING}")


def test_a_quota_that_does_not_parse_does_not_give_way_to_a_new_one_of_its_tenant():
    quota = make.quota("search", kv={"hard": {"percent": 60}})
    newcomer = make.quota("another", age=30, tenant="search", kv={"hard": {"percent": 99}})
    plan = after(quota, quotas=make.seen(newcomer), invalid=(make.unread("search"),))
    assert make.hards(plan.configs[0]) == {"search": 11_058}
    assert ready(plan, "another")[:2] == ("False", "DuplicateTenant")


def test_only_one_of_two_that_do_not_parse_keeps_the_share_of_a_tenant():
    first, second = make.quota("a", tenant="search"), make.quota("b", tenant="batch")
    before = make.observed(quotas=make.seen(first, second))
    stored = make.carried_out(before, make.reconcile(before, make.NOW, make.WALL))
    (config,) = stored.configs.values()
    renamed = tuple(msgspec.structs.replace(share, id="inference/search") for share in config.tenants)
    config = msgspec.structs.replace(config, tenants=renamed)
    broken = replace(
        stored,
        configs={config.pod.uid: config},
        quotas=(),
        invalid=(make.unread("b"), make.unread("a")),
        reports=make.reported(make.report()),
    )
    plan = make.reconcile(broken, make.NOW, make.LATER)
    assert [share.quota for share in plan.configs[0].tenants] == ["a"]


def test_a_new_pod_gets_the_kept_share_that_the_others_have():
    quota = make.quota("search", kv={"soft": {"percent": 40}, "hard": {"percent": 60}})
    pods = (make.pod("llama-8b-0"), make.pod("llama-8b-1"))
    plan = after(quota, quotas=(), invalid=(make.unread("search"),), pods=pods)
    assert [make.softs(config) for config in plan.configs] == [{"search": 7_372}] * 2


def broken_on_two_pods(**other_share):
    """Plans of two pods whose quota does not parse any more; the second one's copy has `other_share` changed."""
    pods = (make.pod("a"), make.pod("b"))
    reports = make.reported(make.report(), name="a") | make.reported(make.report(), name="b")
    quota = make.quota("search", scope="Pool", kv={"hard": {"tokens": 80_016}})
    before = make.observed(quotas=make.seen(quota), pods=pods, reports=reports)
    stored = make.carried_out(before, make.reconcile(before, make.NOW, make.WALL))
    other = stored.configs["uid-b"]
    share = msgspec.structs.replace(other.tenants[0], **other_share)
    configs = stored.configs | {"uid-b": msgspec.structs.replace(other, tenants=(share,))}
    broken = replace(stored, configs=configs, quotas=(), invalid=(make.unread("search"),))
    return make.reconcile(broken, make.NOW, make.LATER)


def test_every_pod_keeps_its_own_share():
    plan = broken_on_two_pods(hard_blocks=77)
    assert [make.hards(config) for config in plan.configs] == [{"search": 2_501}, {"search": 77}]


def test_a_share_of_another_tenant_in_a_copy_is_not_kept():
    plan = broken_on_two_pods(id="inference/somebody", hard_blocks=77)
    assert [config.tenants[0].id for config in plan.configs] == ["inference/search"] * 2


def test_a_kept_share_on_a_pod_that_came_up_smaller_is_told_the_same_again():
    search = make.quota("search", kv={"soft": {"percent": 40}, "hard": {"percent": 60}})
    batch = make.quota("batch", kv={"soft": {"percent": 40}})
    before = make.observed(quotas=make.seen(search, batch))
    stored = make.carried_out(before, make.reconcile(before, make.NOW, make.WALL))
    small = make.reported(make.report(blocks=5_001))
    broken = replace(stored, quotas=make.seen(batch), invalid=(make.unread("search"),), reports=small)
    plan = make.reconcile(broken, make.NOW, make.WALL)
    assert make.softs(plan.configs[0]) == {"batch": 0, "search": 4_250}
    assert make.condition(plan.quota_statuses["search"], "QuotaWithinCapacity")[:2] == ("False", "HardAbovePool")
    assert make.condition(plan.quota_statuses["batch"], "QuotaWithinCapacity") == (
        "False",
        "Oversubscribed",
        "the softs of the tenants of ModelPool llama-8b sum to 6,250 blocks of one pod, more than the 4,250 that"
        " degradation.shed.enterPercent (85 %) leaves of its 5,000: this soft is scaled down from 2,000 to 0 blocks."
        " Lower softs, or raise memory.kvPool",
    )
    again = make.reconcile(make.carried_out(broken, plan), make.NOW, make.LATER)
    assert again == replace(plan, events=())


def test_other_quotas_go_on_beside_one_that_is_broken():
    search = make.quota("search", kv={"soft": {"percent": 40}})
    batch = make.quota("batch", kv={"soft": {"tokens": 20_000}})
    edited = make.quota("batch", kv={"soft": {"tokens": 1_600}})
    plan = after(search, batch, quotas=make.seen(edited), invalid=(make.unread("search"),))
    assert make.softs(plan.configs[0]) == {"batch": 100, "search": 7_372}
    assert ready(plan, "batch")[:2] == ("True", "InForce")


def test_a_pool_that_does_not_parse_leaves_every_share_in_force():
    plan = after(make.quota("search", tier="gold"), pool=make.unread_pool())
    assert (make.softs(plan.configs[0]), plan.configs[0].generation) == ({"search": 7_372}, 1)
    assert ready(plan, "search") == (
        "False",
        "PoolInvalid",
        f"ModelPool llama-8b cannot be read: correct it as its condition PlanValid says. {GONE}",
    )


def test_a_quota_that_is_new_to_a_pool_that_does_not_parse_waits():
    plan = after(make.quota("search"), pool=make.unread_pool(), quotas=make.seen(make.quota("new")))
    assert plan.configs[0].tenants == ()
    assert ready(plan, "new")[2].endswith(NOTHING)


def test_a_pool_has_a_largest_number_of_tenants(monkeypatch):
    monkeypatch.setattr(rules, "MAX_TENANTS", 2)
    found = standings(make.observed(quotas=make.seen(*(make.quota(f"q{age}", age=age) for age in range(3)))), ())
    assert [each.tenant for each in found] == ["inference/q0", "inference/q1", None]
    assert (found[2].problem.reason, found[2].problem.message) == (
        "TooManyTenants",
        "ModelPool llama-8b has 2 older quotas, the most that a pool can have: delete some, or make another pool",
    )
