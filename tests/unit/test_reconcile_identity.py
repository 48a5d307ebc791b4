"""Whose tokens are believed and which peer is trusted, from the pool, its quotas and what they name."""

import json
from dataclasses import replace

import pytest

import reconcile_builders as make
from identities import jwks, public_jwk
from kvquota_api.pod_config import JwtIssuer, PoolIdentity, TrustedPeer, key_digest, sealed
from kvquota_operator.reading.secrets import jwks_ref, read_key_set, secret_refs
from kvquota_operator.reconcile.observed import KeyFound, KeyProblem, SecretSeen

PEER_SECRET = make.example_keys()["gateway-secret", "token"].value
ANOTHER_SET = jwks({**public_jwk("P-256"), "kid": "b"})


def issuer(**changes):
    """The issuer of the example pool."""
    found = json.loads(make.example_jwks().value)["keys"][0]
    keys = json.dumps({"keys": [found]}, separators=(",", ":"))
    whole = {"issuer": "https://issuer.example", "audience": "kvquota", "tenant_claim": "tenant", "keys": keys}
    return JwtIssuer(namespace="inference", **{**whole, **changes})


def peer(values=None, name="x-tenant"):
    """The peer of the example pool."""
    ids = {value: f"inference/{tenant}" for value, tenant in (values or {"search": "search", "batch": "batch"}).items()}
    return TrustedPeer(name=name, secret=key_digest(make.PEPPER, PEER_SECRET), tenants=ids)


def identity_of(plan):
    return plan.secret.identity


def governed(plan):
    return make.condition(plan.pool_status, "PodsGoverned")


def ready(plan, name):
    return make.condition(plan.quota_statuses[name], "Ready")


def before(**fields):
    """The example pool after its plan was carried out."""
    seen = make.observed(**fields)
    return make.carried_out(seen, make.reconcile(seen, make.NOW, make.WALL))


def after(seen, **fields):
    return make.reconcile(replace(seen, **fields), make.NOW, make.LATER)


def test_the_issuer_and_the_peer_of_the_example():
    plan = make.decided()
    assert (identity_of(plan).jwt, identity_of(plan).trusted_peer) == (issuer(), peer())
    assert governed(plan)[:2] == ("True", "AllGoverned")


def test_a_pool_that_takes_neither_has_neither():
    plan = make.decided(pool=make.pool(sidecar__identity={}), jwks=None, keys={})
    assert (identity_of(plan).jwt, identity_of(plan).trusted_peer) == (None, None)
    assert governed(plan)[0] == "True"


def test_only_the_keys_of_the_set_make_a_difference():
    loose = json.loads(make.example_jwks().value)
    loose["keys"].append({"kty": "RSA", "use": "enc"})
    loose["keys"][0]["x5t"] = "thumb"
    spaced = KeyFound(json.dumps(loose, indent=4))
    assert identity_of(make.decided(jwks=spaced)).digest == identity_of(make.decided()).digest


def test_new_keys_are_taken_at_once():
    plan = after(before(), jwks=KeyFound(ANOTHER_SET))
    assert json.loads(identity_of(plan).jwt.keys)["keys"][0]["kid"] == "b"
    assert governed(plan)[0] == "True"


KEPT = ". The keys that were read last stay in force; to refuse all tokens, take jwt out of the pool"
FIRST = ". No token is accepted until then"
FIELD = "spec.sidecar.identity.jwt.keysRef: "
GONE = KeyProblem("JWTKeysNotFound", "ConfigMap jwks does not exist: create it with the set under jwks.json")
TROUBLES = {
    "a set that is none": (
        KeyFound("{"),
        "JWTKeysInvalid",
        "the set of keys is not used: it is no JSON Web Key Set (Input data was truncated): publish the set as the"
        " issuer has it",
    ),
    "a private key": (
        KeyFound('{"keys": [{"kty": "RSA", "d": "x"}]}'),
        "JWTKeysInvalid",
        "the set of keys is not used: keys[0] is a private or symmetric key: publish public keys only, and replace this"
        " one",
    ),
    "a set that is gone": (GONE, GONE.reason, GONE.message),
    "a set that nobody looked for": (
        None,
        "JWTKeysNotFound",
        "the set of keys was not found: publish it where keysRef says",
    ),
}


@pytest.mark.parametrize(("found", "reason", "message"), TROUBLES.values(), ids=TROUBLES)
def test_keys_that_cannot_be_used_change_nothing_and_are_told(found, reason, message):
    plan = after(before(), jwks=found)
    assert identity_of(plan).jwt == issuer()
    assert governed(plan) == ("False", reason, FIELD + message + KEPT)
    assert plan.pool_status["state"] == "Faulty"
    plan = make.decided(jwks=found)
    assert identity_of(plan).jwt is None
    assert governed(plan) == ("False", reason, FIELD + message + FIRST)


def test_the_keys_of_one_issuer_never_vouch_for_another():
    moved = make.pool(sidecar__identity__jwt__issuer="https://other.example")
    plan = after(before(), pool=moved, jwks=GONE)
    assert (identity_of(plan).jwt, governed(plan)[2]) == (None, FIELD + GONE.message + FIRST)


def test_what_the_pool_says_of_its_tokens_counts_also_while_their_keys_are_gone():
    changed = make.pool(sidecar__identity__jwt__audience="other", sidecar__identity__jwt__tenantClaim="team")
    plan = after(before(), pool=changed, jwks=GONE)
    assert identity_of(plan).jwt == issuer(audience="other", tenant_claim="team")


def test_a_pool_that_does_not_parse_keeps_its_issuer_and_its_peer():
    plan = after(before(), pool=make.unread_pool(), jwks=None)
    assert (identity_of(plan).jwt, identity_of(plan).trusted_peer) == (issuer(), peer())


def test_a_pool_that_never_did_has_neither():
    plan = make.decided(pool=make.unread_pool())
    assert (identity_of(plan).jwt, identity_of(plan).trusted_peer) == (None, None)


def test_nothing_is_kept_of_another_pepper():
    old = sealed(PoolIdentity(digest="", pepper="6" * 64, api_keys={}, jwt=issuer(), trusted_peer=peer()))
    plan = make.decided(secret=SecretSeen(make.TOKEN, make.PEPPER, old), jwks=GONE)
    assert identity_of(plan).jwt is None


# The peer.


def quotas(*named):
    """Quotas of (name, value of the header or None), the first the oldest."""
    made = []
    for age, (name, value) in enumerate(named):
        spec = {} if value is None else {"identity": {"headerValue": value}}
        made.append(make.quota(name, age=age, **spec))
    return make.seen(*made)


def test_a_tenant_without_a_value_is_known_by_its_name():
    plan = make.decided(quotas=quotas(("a", None), ("b", "team b")))
    assert identity_of(plan).trusted_peer == peer({"a": "a", "team b": "b"})


CONFLICT = (
    "spec.identity.headerValue: the value {value} of the trusted header already stands for the tenant of TenantQuota"
    " {holder}: give one of the two another headerValue"
)


def test_a_value_of_two_quotas_is_that_of_the_older():
    plan = make.decided(quotas=quotas(("old", "x"), ("young", "x")))
    assert identity_of(plan).trusted_peer == peer({"x": "old"})
    assert ready(plan, "old")[0] == "True"
    assert ready(plan, "young") == ("False", "HeaderValueConflict", CONFLICT.format(value="x", holder="old"))


def test_a_name_that_is_somebody_elses_value_is_told():
    plan = make.decided(quotas=quotas(("old", "young"), ("young", None)))
    assert identity_of(plan).trusted_peer == peer({"young": "old"})
    told = CONFLICT.format(value="young, which is this tenant's name,", holder="old")
    assert ready(plan, "young") == ("False", "HeaderValueConflict", told)


def test_a_value_that_is_the_name_of_an_older_tenant_is_told():
    plan = make.decided(quotas=quotas(("old", None), ("young", "old")))
    assert (identity_of(plan).trusted_peer, ready(plan, "young")[1]) == (peer({"old": "old"}), "HeaderValueConflict")


def test_a_value_with_a_comma_is_told_and_not_used():
    plan = make.decided(quotas=quotas(("a", "x,y"), ("b", None)))
    assert identity_of(plan).trusted_peer == peer({"b": "b"})
    assert ready(plan, "a") == (
        "False",
        "HeaderValueAmbiguous",
        "spec.identity.headerValue: x,y has a comma, by which proxies join two headers into one: choose a value"
        " without",
    )


def test_a_value_that_nobody_reads_is_told():
    plan = make.decided(pool=make.pool(sidecar__identity={}), quotas=quotas(("old", "x"), ("young", "x")))
    assert identity_of(plan).trusted_peer is None
    assert ready(plan, "young") == (
        "True",
        "HeaderValueUnread",
        "spec.identity.headerValue: ModelPool llama-8b has no sidecar.identity.trustedHeader, so nobody is known by"
        " this value: set that, or give the tenant API keys",
    )
    plan = make.decided(pool=make.pool(sidecar__identity={}), quotas=quotas(("other", None)))
    assert ready(plan, "other")[1] == "InForce"


def test_all_that_is_wrong_with_a_quota_is_said():
    second = make.quota("young", age=9, identity={"headerValue": "x", **make.key_of("gone")})
    plan = make.decided(quotas=(*quotas(("old", "x")), *make.seen(second)))
    missing = "Secret gone with the key key was not found: create it with the type kvquota.dev/api-key"
    told = CONFLICT.format(value="x", holder="old")
    assert ready(plan, "young") == ("False", "APIKeyNotFound", f"{missing}; {told}")


def test_a_quota_that_does_not_parse_keeps_its_value_against_everybody():
    seen = before(quotas=quotas(("search", "x"), ("batch", None)))
    plan = after(seen, quotas=quotas(("thief", "x")), invalid=(make.unread("search"),))
    assert identity_of(plan).trusted_peer == peer({"x": "search"})
    assert ready(plan, "thief")[1] == "HeaderValueConflict"


def test_a_quota_that_does_not_count_has_no_value():
    twin = make.quota("twin", tenant="search", age=20, identity={"headerValue": "y"})
    plan = make.decided(quotas=(*quotas(("search", None)), *make.seen(twin)))
    assert identity_of(plan).trusted_peer == peer({"search": "search"})


def with_secret(found):
    keys = make.example_keys()
    return keys if found is None else {**keys, ("gateway-secret", "token"): found}


WHERE = "spec.sidecar.identity.trustedHeader"
IGNORED = ". The header is ignored until then"
SECRETS = {
    "a weak one": (
        KeyFound("kvq-0123456789abcdef"),
        "WeakSharedSecret",
        "the secret in Secret gateway-secret, key token, has at most 64 bits of randomness, it needs 128: make one with"
        " `kvquota keygen`",
    ),
    "one of another type": (
        KeyProblem("WrongSecretType", "Secret x has type y"),
        "WrongSecretType",
        "Secret x has type y",
    ),
}


@pytest.mark.parametrize(("found", "reason", "message"), SECRETS.values(), ids=SECRETS)
def test_a_peer_without_a_good_secret_is_no_peer(found, reason, message):
    plan = after(before(), keys=with_secret(found))
    assert identity_of(plan).trusted_peer is None
    assert governed(plan) == ("False", reason, f"{WHERE}.sharedSecretRef: {message}{IGNORED}")
    assert ready(plan, "search")[0] == "True"


def test_a_secret_that_nobody_looked_for_counts_as_missing():
    plan = make.decided(quotas=quotas(("a", None)), keys={})
    missing = "Secret gateway-secret with the key token was not found"
    assert governed(plan) == ("False", "APIKeyNotFound", f"{WHERE}.sharedSecretRef: {missing}{IGNORED}")


@pytest.mark.parametrize("name", ["Authorization", "X_API_KEY", "Host", "X-Kvquota-Tenant", "X-Our_Key"])
def test_a_header_that_means_something_else_is_refused(name):
    pool = make.pool(sidecar__identity__apiKeyHeader="X_Our-Key", sidecar__identity__trustedHeader__name=name)
    plan = make.decided(pool=pool)
    assert identity_of(plan).trusted_peer is None
    message = f"{WHERE}.name: the header {name} means something else here: choose another, such as x-tenant"
    assert governed(plan) == ("False", "HeaderNameTaken", message)


def test_both_troubles_of_a_pool_are_said():
    plan = make.decided(jwks=GONE, keys={})
    assert governed(plan)[1:] == (
        "JWTKeysNotFound",
        f"{FIELD}{GONE.message}{FIRST}; {WHERE}.sharedSecretRef: Secret gateway-secret with the key token was not"
        f" found{IGNORED}",
    )


def test_nothing_secret_is_in_what_is_shown():
    plan = make.decided(jwks=KeyFound('{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}'))
    shown = f"{plan!r} {plan.pool_status} {plan.quota_statuses} {make.observed()!r}"
    assert [each for each in (PEER_SECRET, make.PEPPER, "c2VjcmV0") if each in shown] == []


# Where they are read.


def test_what_a_pool_and_its_quotas_name_is_looked_for():
    in_secret = {"secret": {"name": "jwks", "key": "set"}}
    pool = make.pool(sidecar__identity__jwt__keysRef=in_secret)
    named = [make.quota("a", identity=make.key_of("a-key")), make.quota("b")]
    expected = {("gateway-secret", "token"), ("a-key", "key")}
    assert secret_refs(make.pool(), named) == expected
    assert secret_refs(pool, named) == {*expected, ("jwks", "set")}
    assert secret_refs(make.unread_pool(), ()) == secret_refs(make.pool(sidecar__identity={}), ()) == set()
    assert jwks_ref(make.unread_pool()) is None


REF = jwks_ref(make.pool()).config_map
ABSENT = "ConfigMap jwks has no text under jwks.json: put the set there"


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        pytest.param({"data": {"jwks.json": "{}"}}, KeyFound("{}"), id="a set"),
        pytest.param(None, GONE, id="no ConfigMap"),
        pytest.param({}, KeyProblem("JWTKeysNotFound", ABSENT), id="no data"),
        pytest.param({"data": None}, KeyProblem("JWTKeysNotFound", ABSENT), id="data that are nothing"),
        pytest.param({"data": {"other": "{}"}}, KeyProblem("JWTKeysNotFound", ABSENT), id="another key"),
        pytest.param({"data": {"jwks.json": ""}}, KeyProblem("JWTKeysNotFound", ABSENT), id="an empty text"),
        pytest.param({"data": {"jwks.json": 5}}, KeyProblem("JWTKeysNotFound", ABSENT), id="no text"),
    ],
)
def test_how_a_set_of_keys_is_read(stored, expected):
    assert read_key_set(stored, REF) == expected
