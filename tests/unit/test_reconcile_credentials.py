"""Who the clients of the pool are: keys found, missing, weak and taken."""

from dataclasses import replace

import pytest

import reconcile_builders as make
from kvquota_api.pod_config import PoolIdentity, encode, key_digest, sealed
from kvquota_operator.reconcile.observed import KeyFound, KeyProblem, SecretSeen
from kvquota_operator.reconcile.strength import strength_bits

HEX = "0123456789abcdef"
STRONG, OTHER = f"kvq-{HEX * 4}", f"kvq-{HEX[::-1] * 4}"


def holder(name, *secrets, age=10):
    keys = [{"secretRef": {"name": secret, "key": "key"}} for secret in secrets or (name,)]
    return make.quota(name, age=age, identity={"apiKeys": keys})


def found(**values):
    return {(name, "key"): KeyFound(value) for name, value in values.items()}


def api_keys(plan):
    return plan.secret.identity.api_keys


def digest(key, pepper=make.PEPPER):
    return key_digest(pepper, key)


def ready(plan, name):
    return make.condition(plan.quota_statuses[name], "Ready")


@pytest.mark.parametrize(
    ("key", "bits"),
    [
        pytest.param("0" * 64, 0, id="a key that does not vary"),
        pytest.param("1234567" * 10, 0, id="a key of seven characters in turn"),
        pytest.param(HEX * 2, 128, id="32 hexadecimal digits"),
        pytest.param(HEX.upper() * 2, 128, id="32 hexadecimal digits in capitals"),
        pytest.param(f"kvq-{HEX * 2}", 128, id="the prefix adds nothing"),
        pytest.param("0123456789" * 4, 132, id="40 decimal digits"),
        pytest.param("GHIJKLMNOPabcghijk01", 119, id="20 letters and digits"),
        pytest.param("abcdefgh+/ABCDEFGH01", 131, id="20 of base64"),
    ],
)
def test_the_strength_of_a_key(key, bits):
    assert int(strength_bits(key)) == bits


def test_every_key_of_a_quota_stands_for_its_tenant():
    plan = make.decided(quotas=make.seen(holder("search", "a", "b")), keys=found(a=STRONG, b=OTHER))
    assert api_keys(plan) == {digest(STRONG): "inference/search", digest(OTHER): "inference/search"}
    assert ready(plan, "search")[:2] == ("True", "InForce")


def test_a_quota_may_name_one_key_twice():
    plan = make.decided(quotas=make.seen(holder("search", "a", "b")), keys=found(a=STRONG, b=STRONG))
    assert (api_keys(plan), ready(plan, "search")[0]) == ({digest(STRONG): "inference/search"}, "True")


def test_a_key_of_two_quotas_is_that_of_the_older():
    quotas = make.seen(holder("a-young", age=9), holder("old", age=1))
    plan = make.decided(quotas=quotas, keys=found(old=STRONG, **{"a-young": STRONG}))
    assert (api_keys(plan), ready(plan, "old")[0]) == ({digest(STRONG): "inference/old"}, "True")
    assert ready(plan, "a-young") == (
        "False",
        "APIKeyConflict",
        "the API key in Secret a-young, key key, is already that of TenantQuota old and stands for its tenant: make"
        " another one with `kvquota keygen`",
    )


def test_a_weak_key_is_refused_and_the_others_go_on():
    plan = make.decided(quotas=make.seen(holder("search", "weak", "b")), keys=found(weak=HEX, b=OTHER))
    assert api_keys(plan) == {digest(OTHER): "inference/search"}
    assert ready(plan, "search") == (
        "False",
        "WeakAPIKey",
        "the API key in Secret weak, key key, has at most 64 bits of randomness, it needs 128: make one with"
        " `kvquota keygen`",
    )


def test_a_missing_secret_is_said_and_the_others_go_on():
    problem = KeyProblem("APIKeyNotFound", "Secret search does not exist: create it")
    keys = {("search", "key"): problem, **found(batch=STRONG)}
    plan = make.decided(quotas=make.seen(holder("search"), holder("batch")), keys=keys)
    assert api_keys(plan) == {digest(STRONG): "inference/batch"}
    assert ready(plan, "search") == ("False", "APIKeyNotFound", "Secret search does not exist: create it")
    assert ready(plan, "batch")[0] == "True"
    assert make.hards(plan.configs[0]) == {"batch": 18_431, "search": 18_431}


def test_a_key_that_nobody_looked_for_counts_as_missing():
    plan = make.decided(quotas=make.seen(holder("search")), keys={})
    assert ready(plan, "search") == (
        "False",
        "APIKeyNotFound",
        "Secret search with the key key was not found: create it with the type kvquota.dev/api-key",
    )


def test_several_problems_are_all_said():
    plan = make.decided(quotas=make.seen(holder("search", "weak", "gone")), keys=found(weak="abc"))
    assert ready(plan, "search") == (
        "False",
        "WeakAPIKey",
        "the API key in Secret weak, key key, has at most 0 bits of randomness, it needs 128: make one with"
        " `kvquota keygen`; Secret gone with the key key was not found: create it with the type kvquota.dev/api-key",
    )


def test_a_quota_that_does_not_count_has_no_keys():
    twin = make.quota("twin", tenant="search", age=20, identity=make.key_of("b"))
    plan = make.decided(quotas=make.seen(holder("search", "a"), twin), keys=found(a=STRONG, b=OTHER))
    assert api_keys(plan) == {digest(STRONG): "inference/search"}


def broken_search(**fields):
    """The plan once the quota of `search` does not parse any more, after its key was in force."""
    before = make.observed(quotas=make.seen(holder("search", "a")), keys=found(a=STRONG))
    stored = make.carried_out(before, make.reconcile(before, make.NOW, make.WALL))
    now = replace(stored, quotas=(), invalid=(make.unread("search"),), keys={}, **fields)
    return make.reconcile(now, make.NOW, make.LATER)


def test_a_quota_that_does_not_parse_keeps_its_keys():
    assert api_keys(broken_search()) == {digest(STRONG): "inference/search"}


def test_a_key_that_an_unread_quota_keeps_is_nobody_elses():
    plan = make.reconcile(
        replace(
            make.carried_out(
                make.observed(quotas=make.seen(holder("search", "a")), keys=found(a=STRONG)),
                make.decided(quotas=make.seen(holder("search", "a")), keys=found(a=STRONG)),
            ),
            quotas=make.seen(holder("thief", "b")),
            invalid=(make.unread("search"),),
            keys=found(b=STRONG),
        ),
        make.NOW,
        make.LATER,
    )
    assert api_keys(plan) == {digest(STRONG): "inference/search"}
    assert ready(plan, "thief")[:2] == ("False", "APIKeyConflict")


def test_keys_follow_the_quotas_while_a_pod_is_awaited():
    before = make.observed(quotas=make.seen(holder("gone")), keys=found(gone=STRONG))
    stored = make.carried_out(before, make.reconcile(before, make.NOW, make.WALL))
    started = replace(stored, quotas=make.seen(holder("new")), keys=found(new=OTHER), reports={})
    plan = make.reconcile(started, make.NOW, make.LATER)
    assert plan.configs == tuple(stored.configs.values())
    assert api_keys(plan) == {digest(OTHER): "inference/new"}


@pytest.mark.parametrize(
    "secret",
    [
        pytest.param(SecretSeen(make.TOKEN, make.PEPPER, None), id="no identity is stored"),
        pytest.param(
            SecretSeen(
                make.TOKEN,
                make.PEPPER,
                sealed(PoolIdentity(digest="", pepper="6" * 64, api_keys={digest(STRONG): "inference/search"})),
            ),
            id="the stored identity is of another pepper",
        ),
    ],
)
def test_nothing_is_kept_where(secret):
    assert api_keys(broken_search(secret=secret)) == {}


def test_without_the_pools_secret_there_is_no_identity_yet_but_keys_are_judged():
    plan = make.decided(quotas=make.seen(holder("search")), keys=found(search=HEX), secret=None)
    assert (plan.secret, ready(plan, "search")[1]) == (None, "WeakAPIKey")


def test_no_key_is_in_what_is_shown():
    plan = make.decided(quotas=make.seen(holder("a"), holder("b")), keys=found(a=STRONG, b=STRONG))
    shown = f"{plan!r} {plan.quota_statuses} {make.observed(keys=found(a=STRONG))!r}"
    assert (STRONG in shown, make.PEPPER in shown, make.TOKEN in shown) == (False, False, False)


PEERED = {"trustedHeader": {"name": "x-tenant", "sharedSecretRef": {"name": "gateway", "key": "key"}}}
FITS = 600  # bytes: an identity with two keys and a peer, and not one with twenty


def crowd(count, **changes):
    """A pool that trusts a gateway, and tenants with a key each."""
    names = [f"t{number:02}" for number in range(count)]
    quotas = [holder(name, age=100 - number) for number, name in enumerate(names)]
    keys = found(**{name: f"kvq-{number:02}{HEX * 4}" for number, name in enumerate(names)}, gateway=STRONG)
    return {"pool": make.pool(sidecar={"identity": PEERED}), "quotas": make.seen(*quotas), "keys": keys, **changes}


def test_an_identity_that_is_too_large_is_told_with_both_sizes_and_the_one_before_stays():
    small = make.decided(**crowd(2), max_identity_bytes=FITS)
    assert len(encode(small.secret.identity)) <= FITS
    assert make.condition(small.pool_status, "PodsGoverned")[0] == "True"
    before = SecretSeen(small.secret.token, small.secret.pepper, small.secret.identity)
    large = make.decided(**crowd(20, secret=before), max_identity_bytes=FITS)
    assert large.secret == small.secret
    size = len(encode(make.decided(**crowd(20)).secret.identity))
    status, reason, message = make.condition(large.pool_status, "PodsGoverned")
    assert (status, reason) == ("False", "IdentityTooLarge")
    assert f"takes {-(-size // 1024)} KiB, and a Secret that holds one can have {FITS // 1024} KiB" in message


def test_what_is_taken_away_is_gone_though_the_identity_is_too_large():
    small = make.decided(**crowd(2), max_identity_bytes=FITS)
    before = SecretSeen(small.secret.token, small.secret.pepper, small.secret.identity)
    wanted = crowd(20, secret=before)
    keys = {ref: each for ref, each in wanted["keys"].items() if ref[0] != "t00"}
    kept = make.decided(**{**wanted, "keys": keys}, max_identity_bytes=FITS).secret.identity
    assert list(kept.api_keys.values()) == ["inference/t01"]
    assert dict(kept.trusted_peer.tenants) == {"t00": "inference/t00", "t01": "inference/t01"}
    without = {ref: each for ref, each in wanted["keys"].items() if ref[0] != "gateway"}
    assert make.decided(**{**wanted, "keys": without}, max_identity_bytes=FITS).secret.identity.trusted_peer is None


def test_a_first_identity_that_is_too_large_lets_nobody_in():
    kept = make.decided(**crowd(20), max_identity_bytes=FITS).secret.identity
    assert (kept.api_keys, kept.jwt, kept.trusted_peer) == ({}, None, None)


def test_a_peer_that_was_not_there_before_waits_until_the_identity_fits():
    alone = make.decided(**crowd(2, pool=make.pool(sidecar={"identity": {}})))
    before = SecretSeen(alone.secret.token, alone.secret.pepper, alone.secret.identity)
    assert make.decided(**crowd(20, secret=before), max_identity_bytes=FITS).secret == alone.secret
