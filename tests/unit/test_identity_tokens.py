"""Clients that show a JSON Web Token, and all that is no good one."""

import hashlib
import hmac
import json
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from identities import (
    AUDIENCE,
    ISSUER,
    KINDS,
    NOW,
    Who,
    body,
    claims,
    head,
    in_base64url,
    private_key,
    public_jwk,
    signed,
    signing_set,
    token,
    unsigned,
)
from kvquota_sidecar.proxy.identity import Directory, Failure, identify, to_withhold
from kvquota_sidecar.proxy.identity.tokens import LEEWAY_SECONDS, MAX_TOKEN_BYTES
from sidecar_rig import BATCH, KEYS, PEPPER, SEARCH, config, share

KEY_TEXT = {key: tenant for tenant, key in KEYS.items()}
ES256 = signing_set("ES256")


def directory(jwks=ES256, keys=KEY_TEXT, **changes):
    return Directory(config(**changes), Who(PEPPER, keys=keys, jwks=jwks).identity())


def bearer(text, *more, path="/v1/completions"):
    return head(b"Authorization: Bearer " + text.encode(), *more, path=path)


def known(text, where=None, now=NOW):
    return identify(bearer(text), where or directory(), now)


@pytest.mark.parametrize("algorithm", KINDS)
def test_a_token_of_every_asymmetric_algorithm_names_its_tenant(algorithm):
    assert known(token(algorithm=algorithm), directory(signing_set(algorithm))) == SEARCH


def test_a_token_of_ed448_names_its_tenant():
    text = unsigned(b'{"alg": "EdDSA", "kid": "k0"}', body(None))
    signature = private_key("Ed448", 0).sign(text.encode())
    keys = json.dumps({"keys": [public_jwk("Ed448", kid="k0")]})
    assert known(f"{text}.{in_base64url(signature)}", directory(keys)) == SEARCH


GOOD = {
    "an audience among several": claims(aud=["other", AUDIENCE]),
    "a start that has come": claims(nbf=NOW),
    "a start within the leeway": claims(nbf=NOW + LEEWAY_SECONDS),
    "an end that has come, within the leeway": claims(exp=NOW - LEEWAY_SECONDS + 0.01),
    "an end with a fraction": claims(exp=NOW + 0.5),
    "claims that mean nothing here": claims(iat="x", sub=["y"], deep={"a": [1, 2, {"b": None}]}),
}
BAD = {
    "another issuer": claims(iss="https://issuer.example/"),
    "the issuer in other letters": claims(iss=ISSUER.upper()),
    "several issuers": claims(iss=[ISSUER]),
    "no issuer": claims(iss=None),
    "another audience": claims(aud="kvquota2"),
    "the audience in other letters": claims(aud=AUDIENCE.upper()),
    "no audience": claims(aud=None),
    "an empty list of audiences": claims(aud=[]),
    "audiences that are no text": claims(aud=[AUDIENCE, 5]),
    "an audience inside another list": claims(aud=[[AUDIENCE]]),
    "no end": claims(exp=None),
    "an end that has come": claims(exp=NOW - LEEWAY_SECONDS),
    "an end in words": claims(exp=str(int(NOW + 300))),
    "an end that is true": claims(exp=True),
    "an end that is null": body(claims()).replace(str(NOW + 300).encode(), b"null"),
    "an end that no number is": body(claims()).replace(str(NOW + 300).encode(), b"NaN"),
    "an end beyond all numbers": body(claims()).replace(str(NOW + 300).encode(), b"1e999"),
    "a start that has not come": claims(nbf=NOW + LEEWAY_SECONDS + 1),
    "a start in words": claims(nbf="0"),
    "no tenant": claims(tenant=None),
    "an empty tenant": claims(tenant=""),
    "a tenant that is no text": claims(tenant=5),
    "several tenants": claims(tenant=["search"]),
    "a tenant that nobody has": claims(tenant="gone"),
    "a tenant of another namespace": claims(tenant="../shop/search"),
    "a tenant with its namespace": claims(tenant="shop/search"),
    "a tenant in other letters": claims(tenant="Search"),
    "a tenant with a space": claims(tenant="search "),
    "a tenant without end": claims(tenant="x" * 254),
    "no claims": {},
    "a list of claims": b"[]",
    "no JSON": b"search",
    "no UTF-8": b'{"tenant": "\xff"}',
    "JSON without end": b'{"a":' * 3000 + b"1" + b"}" * 3000,
}


@pytest.mark.parametrize("said", GOOD.values(), ids=GOOD)
def test_what_a_good_token_may_claim(said):
    assert known(token(said)) == SEARCH


@pytest.mark.parametrize("said", BAD.values(), ids=BAD)
def test_a_signed_token_that_does_not_name_a_tenant_to_us_is_unknown(said):
    assert known(token(said)) == Failure.UNKNOWN


def with_secret(secret: bytes) -> str:
    """A token that is signed with HMAC: the attack that takes a public key for a shared secret."""
    start = unsigned(b'{"alg": "HS256", "kid": "k0"}', body(None))
    return f"{start}.{in_base64url(hmac.new(secret, start.encode(), hashlib.sha256).digest())}"


PUBLIC = private_key("P-256", 0).public_key()
OWN_KEY = public_jwk("P-256", 7)
HEADER = b'{"alg": "ES256", "typ": "JWT", "kid": "k0"}'
START, SIGNATURE = signed(HEADER, body(None)).rsplit(".", 1)
FORGED = {
    "no algorithm": token(alg=None),
    "the algorithm none": unsigned(b'{"alg": "none", "kid": "k0"}', body(None)) + ".",
    "none with a signature": token(alg="none"),
    "none in other letters": token(alg="nOnE"),
    "HMAC with the public key as PEM": with_secret(
        PUBLIC.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    ),
    "HMAC with the set of keys": with_secret(ES256.encode()),
    "HMAC with nothing": with_secret(b""),
    "another algorithm than the key's": token(alg="RS256"),
    "another algorithm of the curve": token(alg="ES384"),
    "an algorithm in small letters": token(alg="es256"),
    "an algorithm that is no text": token(alg=["ES256"]),
    "a key that it brings along": token(number=7, kid="k0", jwk=OWN_KEY),
    "a key of ours that it brings along": token(jwk=public_jwk("P-256")),
    "an address of keys": token(jku="https://evil.example/jwks.json"),
    "an address of certificates": token(x5u="https://evil.example/cert.pem"),
    "certificates": token(x5c=["MII..."]),
    "something that must be understood": token(crit=["exp"]),
    "a body that is not encoded": token(b64=False),
    "a body that is packed": token(zip="DEF"),
    "a key id that nobody has": token(kid="k9"),
    "a key id that is a path": token(kid="../../dev/null"),
    "a key id that is no text": token(kid=5),
    "an empty key id": token(kid=""),
    "the key of somebody else under our id": token(number=7, kid="k0"),
    "another body under the signature": f"{unsigned(HEADER, body(claims(tenant='batch')))}.{SIGNATURE}",
    "another header under the signature": f"{unsigned(HEADER + b' ', body(None))}.{SIGNATURE}",
    "a signature of nothing": f"{START}.{in_base64url(bytes(64))}",
    "a signature that is cut": f"{START}.{SIGNATURE[:-4]}",
    "a signature in another form": f"{START}.{in_base64url(b'0E' + bytes(69))}",
    "no signature": f"{START}.",
    "no third part": START,
    "four parts": f"{START}.{SIGNATURE}.{SIGNATURE}",
    "five parts": ".".join(["a"] * 5),
    "padding": f"{START}.{SIGNATURE}==",
    "base64 of the other alphabet": f"{START}.{SIGNATURE[:-2]}+/",
    "a part of a length that base64 does not have": f"{START}.{SIGNATURE[:-1]}",
    "white space inside": token().replace(".", ". ", 1),
    "a header that is no JSON": signed(b"ES256", body(None)),
    "a header that is a list": signed(b"[]", body(None)),
    "too long": token(claims(more="x" * MAX_TOKEN_BYTES)),
}


@pytest.mark.parametrize("text", FORGED.values(), ids=FORGED)
def test_a_forged_token_is_unknown(text):
    assert known(text) == Failure.UNKNOWN


def test_a_long_token_is_a_token_all_the_same():
    text = token(claims(groups="x" * 8000))
    assert (len(text) > 8192, known(text)) == (True, SEARCH)


def test_the_key_is_that_of_the_tokens_id_and_without_one_the_only_one():
    both = directory(signing_set("ES256", numbers=(0, 1)))
    assert [known(token(number=number), both) for number in (0, 1)] == [SEARCH, SEARCH]
    assert known(token(number=1, kid="k0"), both) == Failure.UNKNOWN
    assert (known(token(kid=None), both), known(token(kid=None))) == (Failure.UNKNOWN, SEARCH)


def test_of_keys_without_an_id_the_one_for_the_tokens_algorithm_counts():
    nameless = directory(json.dumps({"keys": [public_jwk("RSA", alg="RS256"), public_jwk("P-256")]}))
    assert [known(token(algorithm=each, kid=None), nameless) for each in ("RS256", "ES256")] == [SEARCH, SEARCH]
    assert known(token(algorithm="RS384", kid=None), nameless) == Failure.UNKNOWN


def test_a_number_names_no_tenant_though_one_is_called_so():
    where = Directory(config(share("shop/5", soft=0, hard=8)), Who(PEPPER, jwks=ES256).identity())
    assert [known(token(claims(tenant=each)), where) for each in ("5", 5)] == ["shop/5", Failure.UNKNOWN]


def test_a_token_ends_though_it_was_known_before():
    where, text = directory(), token(claims(exp=NOW + 10))
    times = (NOW, NOW + 10 + LEEWAY_SECONDS - 0.01, NOW + 10 + LEEWAY_SECONDS, NOW + 3600)
    assert [known(text, where, at) for at in times] == [SEARCH, SEARCH, Failure.UNKNOWN, Failure.UNKNOWN]


def test_a_key_that_looks_like_a_token_is_a_key():
    text = token(claims(tenant="search", exp=NOW - 3600))
    assert known(text, directory(keys={text: BATCH})) == BATCH


def test_without_an_issuer_a_token_is_an_unknown_key():
    assert known(token(), directory(jwks=None)) == Failure.UNKNOWN


def test_a_set_of_keys_that_cannot_be_read_lets_nobody_in_by_a_token_and_everybody_by_a_key():
    where = directory(jwks='{"keys": []}')
    assert (known(token(), where), known(KEYS[BATCH], where)) == (Failure.UNKNOWN, BATCH)


def test_where_strangers_are_somebody_a_bad_token_is_a_stranger():
    where = directory(anonymous_tenant=BATCH)
    assert (known(token(number=7, kid="k0"), where), known(token(), where)) == (BATCH, SEARCH)


def test_a_token_comes_in_authorization_also_where_keys_have_a_header_of_their_own():
    where = directory(api_key_header="X-Our-Key")
    assert known(token(), where) == SEARCH
    assert identify(head(b"X-Our-Key: " + token().encode()), where, NOW) == SEARCH
    assert to_withhold(bearer(token()), where) == {b"x-our-key", b"x-api-key"}


def test_a_token_in_anthropics_header_on_its_route():
    where, shown = directory(), b"X-Api-Key: " + token().encode()
    paths = ("/v1/messages", "/v1/messages/count_tokens", "/v1/completions")
    assert [identify(head(shown, path=path), where, NOW) for path in paths] == [SEARCH, SEARCH, Failure.UNKNOWN]


BESIDE = {
    "a key of the same tenant": (KEYS[SEARCH], SEARCH),
    "a key of another tenant": (KEYS[BATCH], Failure.CONTRADICTION),
    "a key that nobody has": ("nonsense", Failure.CONTRADICTION),
    "another token of the same tenant": (token(claims(jti="2")), SEARCH),
    "a token of another tenant": (token(claims(tenant="batch")), Failure.CONTRADICTION),
    "a token that has ended": (token(claims(exp=1)), Failure.CONTRADICTION),
}


@pytest.mark.parametrize(("other", "expected"), BESIDE.values(), ids=BESIDE)
def test_a_token_beside(other, expected):
    where = directory()
    for _ in range(2):  # what was found once is found again
        assert identify(bearer(token(), b"X-Api-Key: " + other.encode()), where, NOW) == expected


def test_two_credentials_hold_until_the_first_of_them_ends():
    where, short = directory(), token(claims(exp=NOW + 10))
    shown = bearer(token(claims(exp=NOW + 99)), b"X-Api-Key: " + short.encode())
    end = NOW + 10 + LEEWAY_SECONDS
    assert [identify(shown, where, at) for at in (NOW, end - 1, end)] == [SEARCH, SEARCH, Failure.CONTRADICTION]


def test_the_library_for_tokens_is_loaded_only_where_a_pool_takes_them():
    program = (
        "import sys\nimport kvquota_sidecar.sidecar\nfrom kvquota_sidecar.proxy.identity import Directory\n"
        "assert not {'jwt', 'cryptography'} & sys.modules.keys(), 'loaded'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
