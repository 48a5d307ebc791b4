"""What a quota says once its tier and the defaults are filled in."""

import pytest

import reconcile_builders as make
from kvquota_api.model_pool import Tier
from kvquota_api.quota import Share
from kvquota_operator.planning.effective import EffectiveQuota, UnknownTier, effective_quota

GOLD = Tier.model_validate(
    {
        "name": "gold",
        "priority": 100,
        "kv": {"soft": {"percent": 40}, "hard": {"percent": 60}},
        "maxConcurrentRequests": 64,
        "maxContextTokens": 8192,
    }
)
BARE = Tier(name="bare")


def effective(**fields):
    plain = {
        "tenant": "inference/search",
        "quota": "search",
        "priority": 0,
        "scope": "PerReplica",
        "soft": None,
        "hard": None,
        "max_concurrent_requests": None,
        "max_context_tokens": None,
        "enforcement": "Enforce",
    }
    return EffectiveQuota(**(plain | fields))


GOLDEN = {
    "priority": 100,
    "soft": Share(percent=40),
    "hard": Share(percent=60),
    "max_concurrent_requests": 64,
    "max_context_tokens": 8192,
}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, effective(), id="a quota that says nothing has the defaults"),
        pytest.param({"tier": "bare"}, effective(), id="a tier that says nothing leaves the defaults"),
        pytest.param({"tier": "gold"}, effective(**GOLDEN), id="a quota with a tier has all of the tier"),
        pytest.param(
            {"tier": "gold", "kv": {"soft": {"tokens": 20000}}},
            effective(**GOLDEN | {"soft": Share(tokens=20000)}),
            id="an own soft replaces the tier's soft as a whole and leaves its hard",
        ),
        pytest.param(
            {"tier": "gold", "kv": {"hard": {"bytes": "8Gi"}}},
            effective(**GOLDEN | {"hard": Share(bytes="8Gi")}),
            id="an own hard replaces the tier's hard and leaves its soft",
        ),
        pytest.param(
            {"tier": "gold", "priority": 0, "maxConcurrentRequests": 1, "maxContextTokens": 2},
            effective(**GOLDEN | {"priority": 0, "max_concurrent_requests": 1, "max_context_tokens": 2}),
            id="an own priority of 0 is a value too",
        ),
        pytest.param(
            {"scope": "Pool", "enforcement": "Shadow"},
            effective(scope="Pool", enforcement="Shadow"),
            id="scope and enforcement are the quota's alone",
        ),
        pytest.param(
            {"tier": "silver"},
            UnknownTier("silver", ("bare", "gold")),
            id="a tier that the pool does not have is said, with those it has",
        ),
    ],
)
def test_own_value_else_tier_else_default(spec, expected):
    assert effective_quota(make.quota("search", **spec), [GOLD, BARE]) == expected
