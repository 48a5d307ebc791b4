"""A peer that names the tenant in a header and proves itself, and everybody else who sends that header."""

import pytest

from identities import NOW, PEER_SECRET, Who, head, signing_set, token
from kvquota_sidecar.proxy.forwarding import engine_request
from kvquota_sidecar.proxy.identity import MAX_KEY_BYTES, Directory, Failure, identify, to_withhold
from sidecar_rig import BATCH, KEYS, PEPPER, SEARCH, config

PROOF = b"X-Kvquota-Peer-Secret: " + PEER_SECRET.encode()
MISSPELT_PROOF = b"X_Kvquota_Peer_Secret: " + PEER_SECRET.encode()
S, B = (b"Authorization: Bearer " + KEYS[tenant].encode() for tenant in (SEARCH, BATCH))
VALUES = {"search": SEARCH, "the batch": BATCH, "gone": "shop/gone", "a,b": SEARCH}


def directory(header="X-Tenant", values=VALUES, jwks=None, **changes):
    keys = {key: tenant for tenant, key in KEYS.items()}
    return Directory(config(**changes), Who(PEPPER, keys=keys, jwks=jwks, values=values, header=header).identity())


def named(*headers, **changes):
    return identify(head(*headers), directory(**changes), NOW)


CONFLICT, UNKNOWN = Failure.CONTRADICTION, Failure.UNKNOWN
CASES = {
    "a proven peer": ((PROOF, b"X-Tenant: search"), SEARCH),
    "headers in other letters": ((PROOF.lower(), b"x-tEnAnT: search"), SEARCH),
    "the name with _ for -": ((PROOF, b"X_Tenant: search"), CONFLICT),
    "the name in both spellings": ((PROOF, b"X-Tenant: search", b"x_tenant: search"), CONFLICT),
    "the secret with _ for -": ((MISSPELT_PROOF, b"X-Tenant: search"), UNKNOWN),
    "the secret with one _ for -": ((MISSPELT_PROOF.replace(b"_", b"-", 1), b"X-Tenant: search"), UNKNOWN),
    "both with _ for -": ((MISSPELT_PROOF, b"X_Tenant: search"), UNKNOWN),
    "the secret in both spellings": ((PROOF, MISSPELT_PROOF, b"X-Tenant: search"), CONFLICT),
    "the name with _ for -, for a tenant that nobody is": ((PROOF, b"X_Tenant: nobody"), CONFLICT),
    "the name with _ for -, and a key": ((b"X_Tenant: search", B), BATCH),
    "the name with _ for - twice, and a key": ((b"X_Tenant: search", b"x_tenant: search", B), BATCH),
    "the secret with _ for - twice, and a key": ((MISSPELT_PROOF, MISSPELT_PROOF, B), BATCH),
    "the name with _ for -, a secret that is another one": ((PROOF + b"x", b"X_Tenant: search"), UNKNOWN),
    "the name with _ for -, the secret and a key": ((PROOF, b"X_Tenant: search", S), CONFLICT),
    "white space around": ((PROOF + b" \t", b"X-Tenant:\t search  "), SEARCH),
    "a value with a space in it": ((PROOF, b"X-Tenant: the batch"), BATCH),
    "a value with two spaces in it": ((PROOF, b"X-Tenant: the  batch"), UNKNOWN),
    "a value in other letters": ((PROOF, b"X-Tenant: Search"), UNKNOWN),
    "a value that is not ASCII": ((PROOF, "X-Tenant: s\u0435arch".encode()), UNKNOWN),
    "a value that is no UTF-8": ((PROOF, b"X-Tenant: search\xff"), UNKNOWN),
    "a value that nobody has": ((PROOF, b"X-Tenant: nobody"), UNKNOWN),
    "an empty value": ((PROOF, b"X-Tenant:"), UNKNOWN),
    "a tenant that the config does not know": ((PROOF, b"X-Tenant: gone"), UNKNOWN),
    "two values": ((PROOF, b"X-Tenant: search", b"X-Tenant: the batch"), CONFLICT),
    "one value twice": ((PROOF, b"X-Tenant: search", b"X-Tenant: search"), CONFLICT),
    "two values under two spellings": ((PROOF, b"X-Tenant: search", b"X_Tenant: the batch"), CONFLICT),
    "two values joined by a comma": ((PROOF, b"X-Tenant: search, the batch"), CONFLICT),
    "a value with a comma that the identity has": ((PROOF, b"X-Tenant: a,b"), CONFLICT),
    "the secret twice": ((PROOF, PROOF, b"X-Tenant: search"), CONFLICT),
    "no secret": ((b"X-Tenant: search",), UNKNOWN),
    "another secret": ((PROOF + b"x", b"X-Tenant: search"), UNKNOWN),
    "an empty secret": ((b"X-Kvquota-Peer-Secret:", b"X-Tenant: search"), UNKNOWN),
    "a secret that is no UTF-8": ((b"X-Kvquota-Peer-Secret: \xff", b"X-Tenant: search"), UNKNOWN),
    "a secret without end": ((b"X-Kvquota-Peer-Secret: " + b"x" * (MAX_KEY_BYTES + 1), b"X-Tenant: search"), UNKNOWN),
    "the secret as a bearer": ((b"Authorization: Bearer " + PEER_SECRET.encode(), b"X-Tenant: search"), UNKNOWN),
    "the secret and no tenant": ((PROOF,), UNKNOWN),
    "the secret, no tenant, and a key": ((PROOF, S), SEARCH),
    "no secret, but a key": ((b"X-Tenant: search", B), BATCH),
    "another secret, and a key": ((PROOF + b"x", b"X-Tenant: search", S), CONFLICT),
    "a key of the same tenant": ((PROOF, b"X-Tenant: search", S), SEARCH),
    "a key of another tenant": ((PROOF, b"X-Tenant: search", B), CONFLICT),
    "a key that nobody has": ((PROOF, b"X-Tenant: search", b"Authorization: Bearer nonsense"), CONFLICT),
    "a key, beside a value that nobody has": ((PROOF, b"X-Tenant: nobody", S), CONFLICT),
    "no bearer in Authorization": ((PROOF, b"X-Tenant: search", b"Authorization: Basic abc"), CONFLICT),
}


@pytest.mark.parametrize(("headers", "expected"), CASES.values(), ids=CASES)
def test_only_a_proven_peer_names_the_tenant(headers, expected):
    where = directory()
    for _ in range(2):  # what was found once is found again
        assert identify(head(*headers), where, NOW) == expected


def test_a_pool_whose_header_has_a_low_line_believes_that_spelling_alone():
    assert named(PROOF, b"X_Tenant: search", header="X_Tenant") == SEARCH
    assert named(PROOF, b"X-Tenant: search", header="X_Tenant") == CONFLICT
    assert named(PROOF, b"X_Tenant: search", b"X-Tenant: search", header="X_Tenant") == CONFLICT
    assert named(b"X-Tenant: search", B, header="X_Tenant") == BATCH
    assert sent(b"X-Tenant: search", b"X_Tenant: search", S, header="X_Tenant") == [S.replace(b"A", b"a", 1)]


def test_a_token_and_a_peer_must_agree():
    bearer, jwks = b"Authorization: Bearer " + token().encode(), signing_set("ES256")
    assert named(PROOF, b"X-Tenant: search", bearer, jwks=jwks) == SEARCH
    assert named(PROOF, b"X-Tenant: the batch", bearer, jwks=jwks) == CONFLICT


def test_where_no_peer_is_trusted_its_headers_say_nothing():
    assert named(PROOF, PROOF, b"X-Tenant: search", b"X-Tenant: search", values=None) == UNKNOWN
    assert named(PROOF, b"X-Tenant: search", B, values=None) == BATCH


def test_where_strangers_are_somebody_an_unproven_peer_is_a_stranger():
    assert named(PROOF + b"x", b"X-Tenant: search", anonymous_tenant=BATCH) == BATCH
    assert named(b"X-Tenant: search", anonymous_tenant=BATCH) == BATCH
    assert named(PROOF, b"X-Tenant: search", anonymous_tenant=BATCH) == SEARCH


@pytest.mark.parametrize("header", ["Authorization", "X-Api-Key", "X_API_KEY"])
def test_a_header_with_two_meanings_is_a_contradiction(header):
    line = header.encode() + b": search"
    assert identify(head(PROOF, line), directory(header), NOW) == CONFLICT


def sent(*headers, **changes):
    """What the engine is sent of these headers."""
    request = head(*headers)
    lines = engine_request(request, b"", b"engine", "id", to_withhold(request, directory(**changes))).split(b"\r\n")
    return [line for line in lines if line.split(b":")[0] not in (b"host", b"x-request-id", b"content-length")][1:-2]


def test_the_engine_sees_neither_the_secret_nor_who_was_named():
    headers = (PROOF, b"X-Tenant: search", b"X_Tenant: search", b"My-Team: search", b"my_team: search")
    assert sent(*headers, header="My-Team") == []
    assert sent(b"my_team: a", b"x_kvquota_peer_secret: b", S, header="My-Team", authorization="Forward") == [
        S.replace(b"A", b"a", 1)
    ]
    assert sent(b"my_team: a", S, header="My-Team", authorization="Remove") == []
