"""Which tenant a request belongs to."""

import pytest

from identities import ISSUER, Who, signing_set
from kvquota_sidecar.proxy.head import Head, read_head
from kvquota_sidecar.proxy.identity import MAX_KEY_BYTES, Directory, Failure, identify, to_withhold
from sidecar_rig import BATCH, KEYS, PEPPER, SEARCH, config, identity

NOW = 1_800_000_000.0
S, B = KEYS[SEARCH].encode(), KEYS[BATCH].encode()
STRANGE = "kvq-\u00e4"  # a key that is not ASCII is a key all the same
SECOND = "kvq-second"  # another key of the same tenant


def head(*headers: bytes, path: str = "/v1/completions") -> Head:
    data = b"\r\n".join([f"POST {path} HTTP/1.1".encode(), b"Host: a", *headers, b""])
    found = read_head(data)
    assert isinstance(found, Head)
    return found


def directory(**changes: object) -> Directory:
    return Directory(config(**changes), identity(**{STRANGE: BATCH, "orphan": "shop/gone", SECOND: SEARCH}))


CASES: dict[str, tuple[Head, str | Failure]] = {
    "a key": (head(b"Authorization: Bearer " + S), SEARCH),
    "another key": (head(b"authorization: bearer   " + B), BATCH),
    "a key that is not ASCII": (head(b"Authorization: Bearer " + STRANGE.encode()), BATCH),
    "no key": (head(), Failure.UNKNOWN),
    "an unknown key": (head(b"Authorization: Bearer nonsense"), Failure.UNKNOWN),
    "a key in other letters": (head(b"Authorization: Bearer " + S.upper()), Failure.UNKNOWN),
    "a key and something after it": (head(b"Authorization: Bearer " + S + b" x"), Failure.UNKNOWN),
    "an empty key": (head(b"Authorization: Bearer "), Failure.UNKNOWN),
    "another scheme": (head(b"Authorization: Basic " + S), Failure.UNKNOWN),
    "a key without a scheme": (head(b"Authorization: " + S), Failure.UNKNOWN),
    "a key that is no UTF-8": (head(b"Authorization: Bearer \xff\xfe"), Failure.UNKNOWN),
    "a key without end": (head(b"Authorization: Bearer " + b"x" * (MAX_KEY_BYTES + 1)), Failure.UNKNOWN),
    "a key of a tenant that the config does not know": (head(b"Authorization: Bearer orphan"), Failure.UNKNOWN),
    "two keys": (head(b"Authorization: Bearer " + S, b"Authorization: Bearer " + B), Failure.CONTRADICTION),
    "the same key twice": (head(b"Authorization: Bearer " + S, b"Authorization: Bearer " + S), Failure.CONTRADICTION),
    "Anthropic's header on its route": (head(b"X-Api-Key: " + S, path="/v1/messages"), SEARCH),
    "Anthropic's header elsewhere": (head(b"X-Api-Key: " + S), Failure.UNKNOWN),
    "both headers that agree": (head(b"X-Api-Key: " + S, b"Authorization: Bearer " + S, path="/v1/messages"), SEARCH),
    "both headers that do not": (
        head(b"X-Api-Key: " + S, b"Authorization: Bearer " + B, path="/v1/messages"),
        Failure.CONTRADICTION,
    ),
    "another tenant's key in Anthropic's header, on a route of OpenAI's": (
        head(b"Authorization: Bearer " + S, b"X-Api-Key: " + B),
        Failure.CONTRADICTION,
    ),
    "the same key in both, on a route of OpenAI's": (head(b"Authorization: Bearer " + S, b"X-Api-Key: " + S), SEARCH),
    "two keys of one tenant": (head(b"Authorization: Bearer " + S, b"X-Api-Key: " + SECOND.encode()), SEARCH),
    "an unknown key beside a known one": (
        head(b"Authorization: Bearer " + S, b"X-Api-Key: nonsense"),
        Failure.CONTRADICTION,
    ),
    "a known key beside an unknown one": (
        head(b"Authorization: Bearer nonsense", b"X-Api-Key: " + S),
        Failure.CONTRADICTION,
    ),
    "two unknown keys": (head(b"Authorization: Bearer a", b"X-Api-Key: b"), Failure.CONTRADICTION),
    "the same unknown key in both": (head(b"Authorization: Bearer a", b"X-Api-Key: a"), Failure.UNKNOWN),
    "a second header twice": (
        head(b"Authorization: Bearer " + S, b"X-Api-Key: " + S, b"X-Api-Key: " + S),
        Failure.CONTRADICTION,
    ),
    "a header that names a tenant": (head(b"X-Kvquota-Tenant: " + SEARCH.encode()), Failure.UNKNOWN),
    "a header that names another tenant": (head(b"X-Tenant: shop/batch", b"Authorization: Bearer " + S), SEARCH),
}


@pytest.mark.parametrize(("request_head", "expected"), CASES.values(), ids=CASES)
def test_a_tenant_is_known_by_its_key_alone(request_head: Head, expected: str | Failure) -> None:
    assert identify(request_head, directory(), NOW) == expected


def test_where_there_is_an_anonymous_tenant_strangers_are_it() -> None:
    known = directory(anonymous_tenant=BATCH)
    assert identify(head(), known, NOW) == BATCH
    assert identify(head(b"Authorization: Bearer EMPTY"), known, NOW) == BATCH
    assert identify(head(b"Authorization: Bearer " + S), known, NOW) == SEARCH
    assert identify(head(b"Authorization: a", b"Authorization: b"), known, NOW) == Failure.CONTRADICTION


def test_a_header_of_its_own_holds_the_bare_key() -> None:
    known = directory(api_key_header="X-Our-Key")
    assert identify(head(b"x-our-key: " + S), known, NOW) == SEARCH
    assert identify(head(b"Authorization: Bearer " + S), known, NOW) == Failure.UNKNOWN
    assert identify(head(b"x-our-key: " + S, b"Authorization: Bearer " + B), known, NOW) == Failure.CONTRADICTION
    assert to_withhold(head(), known) == {b"authorization", b"x-api-key", b"x-our-key"}


KEY, BEARER_KEY = b"X-Api-Key: " + S, b"Authorization: Bearer " + S
WITHHELD: dict[str, tuple[Head, dict[str, object], set[bytes]]] = {
    "beside the key in Authorization": (head(BEARER_KEY), {}, {b"x-api-key"}),
    "beside the same key in both": (head(KEY, BEARER_KEY), {}, {b"x-api-key"}),
    "beside Anthropic's": (head(KEY, path="/v1/messages"), {}, {b"authorization"}),
    "beside a header of its own": (
        head(KEY, BEARER_KEY, b"X-Our-Key: " + S),
        {"api_key_header": "X-Our-Key"},
        {b"authorization", b"x-api-key"},
    ),
    "all of them, where the pool says so": (
        head(BEARER_KEY),
        {"authorization": "Remove"},
        {b"authorization", b"x-api-key"},
    ),
}


@pytest.mark.parametrize(("request_head", "changes", "expected"), WITHHELD.values(), ids=WITHHELD)
def test_the_engine_sees_one_credential_at_most(
    request_head: Head, changes: dict[str, object], expected: set[bytes]
) -> None:
    assert to_withhold(request_head, directory(**changes)) == expected


def test_who_is_unknown_is_told_what_the_pool_takes_and_not_what_was_wrong() -> None:
    begin = "No tenant is known by these credentials. Send an API key of this model pool as "
    assert directory().wanted == f"{begin}'Authorization: Bearer KEY'."
    assert directory(api_key_header="X-Our-Key").wanted == f"{begin}'X-Our-Key: KEY'."
    everything = Who(PEPPER, jwks=signing_set("ES256"), values={"search": SEARCH}).identity()
    assert Directory(config(), everything).wanted == (
        f"{begin}'Authorization: Bearer KEY', or send a token of {ISSUER} as 'Authorization: Bearer TOKEN',"
        " or come through the gateway that this pool trusts."
    )


def test_without_an_identity_nobody_is_known() -> None:
    assert identify(head(b"Authorization: Bearer " + S), Directory(config(), None), NOW) == Failure.UNKNOWN
