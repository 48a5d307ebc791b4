"""Every tenant's share on every pod."""

import pytest

from kvquota_api.amounts import Blocks
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import KvPlan, TenantShare
from kvquota_api.quota import Share
from kvquota_operator.planning.effective import EffectiveQuota
from kvquota_operator.planning.granting import PodRoom, grant_shares, longest_request
from kvquota_operator.planning.guarantees import given_softs, guarantee_limit
from kvquota_operator.planning.holding import Holding, Holdings

KV = KvPlan(
    cap_blocks=1_001,
    null_blocks=1,
    block_tokens=16,
    bytes_per_block=1_000,
    max_model_len=1_600,
    groups=(LayerGroup(kind="Full", block_tokens=16),),
)


def quota(tenant="a", *, soft=None, hard=None, **fields):
    plain = {
        "tenant": tenant,
        "quota": f"quota-{tenant}",
        "priority": 0,
        "scope": "PerReplica",
        "soft": soft,
        "hard": hard,
        "max_concurrent_requests": None,
        "max_context_tokens": None,
        "enforcement": "Enforce",
    }
    return EffectiveQuota(**(plain | fields))


def share(tenant="a", *, soft=0, hard=1_000, **fields):
    plain = {"id": tenant, "quota": f"quota-{tenant}", "priority": 0, "soft_blocks": soft, "hard_blocks": hard}
    return TenantShare(**(plain | fields))


def room(usable=1_000, *, kept=()):
    return PodRoom(Blocks(usable), KV, tuple(kept))


def shares_on(rooms, *quotas):
    """By pod, the shares on it, by tenant."""
    granted = grant_shares(quotas, rooms, 85)
    return [{tenant: grant.share for tenant, grant in pod.grants.items()} for pod in granted]


def parts(rooms, wanted):
    """By pod: soft, hard and sequences of one quota."""
    found = [each[wanted.tenant] for each in shares_on(rooms, wanted)]
    return [(each.soft_blocks, each.hard_blocks, each.max_concurrent_requests) for each in found]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param(quota(), share(soft=0, hard=1_000), id="a quota that says nothing: no soft, the whole pool"),
        pytest.param(
            quota(soft=Share(percent=10), hard=Share(percent=50)),
            share(soft=100, hard=500),
            id="percents of what the pod can hand out",
        ),
        pytest.param(quota(hard=Share(bytes=10**7)), share(hard=1_000), id="a hard above the pool ends with the pool"),
        pytest.param(
            quota(soft=Share(tokens=1_600), hard=Share(bytes=50_000)),
            share(soft=50, hard=50),
            id="a soft above hard ends with hard",
        ),
        pytest.param(
            quota(soft=Share(percent=50), enforcement="Shadow"),
            share(soft=0, enforcement="Shadow"),
            id="a shadow tenant has no guarantee",
        ),
        pytest.param(
            quota(priority=7, max_concurrent_requests=3, max_context_tokens=160),
            share(priority=7, max_concurrent_requests=3, max_context_tokens=160),
            id="what is not memory is passed on",
        ),
    ],
)
def test_share_on_one_pod(wanted, expected):
    assert shares_on([room()], wanted) == [{"a": expected}]


@pytest.mark.parametrize(
    ("usables", "wanted", "expected"),
    [
        pytest.param(
            (1_000, 500),
            quota(soft=Share(percent=10), hard=Share(percent=50), max_concurrent_requests=3),
            [(100, 500, 3), (50, 250, 3)],
            id="per replica: a percent of each pod, the sequences on each pod",
        ),
        pytest.param(
            (1_000, 1_000),
            quota(scope="Pool", hard=Share(percent=50)),
            [(0, 500, None), (0, 500, None)],
            id="pool: a percent of all pods together, in equal parts",
        ),
        pytest.param(
            (1_000, 200),
            quota(scope="Pool", hard=Share(percent=50)),
            [(0, 400, None), (0, 200, None)],
            id="pool: what a small pod has no room for goes to the others",
        ),
        pytest.param(
            (1_000, 200), quota(scope="Pool"), [(0, 1_000, None), (0, 200, None)], id="pool: no hard, all of it"
        ),
        pytest.param(
            (1_000, 1_000, 1_000),
            quota(scope="Pool", soft=Share(tokens=480), hard=Share(tokens=4_816), max_context_tokens=160),
            [(30, 101, None), (30, 100, None), (30, 100, None)],
            id="pool: the remainder goes to the first pod, soft is on each",
        ),
        pytest.param(
            (1_000, 1_000, 1_000),
            quota(scope="Pool", soft=Share(percent=5), hard=Share(tokens=4_784)),
            [(50, 150, None), (50, 149, None), (0, 0, None)],
            id="pool: fewer pods, where a part would be less than the longest request of 100 blocks",
        ),
        pytest.param(
            (1_000, 1_000),
            quota(scope="Pool", hard=Share(tokens=160)),
            [(0, 10, None), (0, 0, None)],
            id="pool: one pod, where all together is less than one request",
        ),
        pytest.param(
            (1_000, 1_000, 1_000),
            quota(scope="Pool", max_concurrent_requests=7),
            [(0, 1_000, 3), (0, 1_000, 2), (0, 1_000, 2)],
            id="pool: the sequences are spread too",
        ),
        pytest.param(
            (1_000, 1_000, 1_000),
            quota(scope="Pool", hard=Share(percent=60), max_concurrent_requests=2),
            [(0, 900, 1), (0, 900, 1), (0, 0, 1)],
            id="pool: no more pods than sequences; without a part hard is 0 and refuses everything",
        ),
    ],
)
def test_share_over_several_pods(usables, wanted, expected):
    assert parts([room(usable) for usable in usables], wanted) == expected


def test_softs_above_the_limit_are_scaled_down_in_proportion():
    quotas = [
        quota("a", soft=Share(percent=60)),
        quota("b", soft=Share(percent=40)),
        quota("c", soft=Share(percent=70)),
    ]
    (pod,) = grant_shares(quotas, [room()], 85)
    given = {tenant: grant.share.soft_blocks for tenant, grant in pod.grants.items()}
    assert (given, pod.limit, pod.softs_asked) == ({"a": 300, "b": 200, "c": 350}, 850, 1_700)


def test_softs_that_just_fit_are_given_as_asked():
    quotas = [quota("a", soft=Share(percent=60)), quota("b", soft=Share(percent=25))]
    (pod,) = grant_shares(quotas, [room()], 85)
    assert [grant.share.soft_blocks for grant in pod.grants.values()] == [600, 250]


def test_a_shadow_tenant_takes_nothing_from_the_guarantees():
    quotas = [quota("a", soft=Share(percent=80)), quota("b", soft=Share(percent=80), enforcement="Shadow")]
    (pod,) = grant_shares(quotas, [room()], 85)
    assert [grant.share.soft_blocks for grant in pod.grants.values()] == [800, 0]


def test_a_kept_share_stays_as_it_was_beside_scaled_ones():
    kept = share("old", soft=500, hard=5_000, priority=3, max_context_tokens=99)
    (found,) = shares_on([room(kept=[kept])], quota("a", soft=Share(percent=70)))
    assert found == {"a": share("a", soft=350), "old": kept}


def test_what_kept_shares_once_had_is_in_no_sum():
    kept = [share("old", soft=600, hard=5_000), share("older", soft=400, hard=5_000)]
    (pod,) = grant_shares([quota("a", soft=Share(percent=10))], [room(kept=kept)], 85)
    found = {tenant: (grant.soft_asked, grant.share.soft_blocks) for tenant, grant in pod.grants.items()}
    assert found == {"a": (100, 0), "old": (510, 510), "older": (340, 340)}
    assert (pod.softs_asked, pod.softs_given) == (950, 850)


def test_the_grant_says_what_was_asked_for():
    (pod,) = grant_shares([quota(soft=Share(bytes=2_000_000), hard=Share(bytes=3_000_000))], [room()], 85)
    grant = pod.grants["a"]
    assert (grant.soft_asked, grant.hard_asked, grant.share) == (2_000, 3_000, share(soft=850, hard=1_000))


@pytest.mark.parametrize(
    ("asked", "kept", "given"),
    [
        pytest.param({"a": 30}, {"b": 40}, {"a": 30, "b": 40}, id="all fit"),
        pytest.param({"a": 90}, {"b": 40}, {"a": 60, "b": 40}, id="the others get what the kept ones leave"),
        pytest.param({"a": 90}, {"b": 400}, {"a": 0, "b": 100}, id="kept ones alone above the limit"),
        pytest.param({"a": 1, "b": 1, "c": 1}, {"d": 98}, {"a": 0, "b": 0, "c": 0, "d": 98}, id="each rounded down"),
    ],
)
def test_guarantees_within_100_blocks(asked, kept, given):
    assert given_softs(asked, kept, Blocks(100)) == given


def test_the_limit_of_the_guarantees_is_rounded_down():
    assert guarantee_limit(Blocks(18_431), 85) == 15_666


@pytest.mark.parametrize(
    ("context", "blocks"),
    [
        pytest.param(None, 100, id="the model's where the tenant has no limit"),
        pytest.param(160, 10, id="the tenant's where it is shorter"),
        pytest.param(16_000, 100, id="the model's where the tenant's is longer"),
    ],
)
def test_longest_request(context, blocks):
    assert longest_request(context, KV) == blocks


def test_where_not_all_can_be_served_those_that_ran_come_before_those_that_did_not():
    held = Holdings({"a": Holding(Blocks(100), 1, Blocks(100), 1)})
    rooms = [PodRoom(Blocks(1_000), KV, (), held, has_run=has_run) for has_run in (False, True, True)]
    wanted = quota(scope="Pool", hard=Share(tokens=4_784))
    assert parts(rooms, wanted) == [(0, 0, None), (0, 100, None), (0, 100, None)]


def test_pods_that_are_alike_have_one_division():
    kept = share("old", soft=5)
    rooms = [room(), room(500), room(), room(kept=[kept]), room(kept=[kept])]
    first, small, second, third, fourth = grant_shares([quota(soft=Share(percent=5))], rooms, 85)
    assert [first is second, third is fourth, small is first, third is first] == [True, True, False, False]
    assert [pod.shares for pod in (first, small, third)] == [
        (share(soft=50),),
        (share(soft=25, hard=500),),
        (share(soft=50), kept),
    ]
