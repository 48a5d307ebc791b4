"""Which keys of a JSON Web Key Set are used, and what is wrong with a set."""

import json

import pytest
from jwt.algorithms import get_default_algorithms

from identities import jwks, public_jwk
from kvquota_api.jwks import MAX_JWKS_CHARACTERS, MAX_KEYS, JwksError, canonical_jwks, read_jwks

EC, RSA, ED, ED448 = public_jwk("P-256"), public_jwk("RSA"), public_jwk("Ed25519"), public_jwk("Ed448")
_RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")


def without(key, *members):
    return {name: value for name, value in key.items() if name not in members}


USED = {
    "an RSA key fits all RSA algorithms": (RSA, _RSA_ALGORITHMS),
    "one that names its algorithm only that": ({**RSA, "alg": "PS384"}, ("PS384",)),
    "a key of the curve P-256": (EC, ("ES256",)),
    "of P-384": (public_jwk("P-384"), ("ES384",)),
    "of P-521": (public_jwk("P-521"), ("ES512",)),
    "of Ed25519": (ED, ("EdDSA",)),
    "of Ed448": (ED448, ("EdDSA",)),
    "a key for signatures": ({**EC, "use": "sig", "key_ops": ["verify"]}, ("ES256",)),
}


@pytest.mark.parametrize(("key", "algorithms"), USED.values(), ids=USED)
def test_which_algorithms_a_key_fits_and_that_it_loads(key, algorithms):
    (used,) = read_jwks(jwks({**key, "kid": "a", "x5c": ["..."]}))
    assert (used.key_id, used.algorithms) == ("a", algorithms)
    assert get_default_algorithms()[algorithms[0]].from_jwk({"kty": used.kind, **dict(used.figures)}) is not None


PASSED_OVER = {
    "a key for encryption": {**RSA, "use": "enc"},
    "a key for other operations": {**RSA, "key_ops": ["encrypt"]},
    "a kind that is not known": {"kty": "AKP", "alg": "ML-DSA-44", "pub": "x"},
    "a curve that is not taken": public_jwk("secp256k1"),
    "a curve for key agreement": {"kty": "OKP", "crv": "X25519", "x": ED["x"]},
    "an algorithm of another kind": {**EC, "alg": "RS256"},
    "a symmetric algorithm on a public key": {**RSA, "alg": "HS256"},
    "no algorithm at all": {**RSA, "alg": "none"},
    "the wrong curve for its algorithm": {**EC, "alg": "ES384"},
}


@pytest.mark.parametrize("key", PASSED_OVER.values(), ids=PASSED_OVER)
def test_keys_for_something_else_are_passed_over(key):
    used = read_jwks(jwks(key, {**ED, "kid": "good"}))
    assert [each.key_id for each in used] == ["good"]
    with pytest.raises(JwksError, match="no public key for signatures"):
        read_jwks(jwks(key))


MODULUS = RSA["n"]
REFUSED = {
    "no JSON": ("{", "it is no JSON Web Key Set"),
    "half a character": ('{"keys": "\ud800"}', "it is no JSON Web Key Set"),
    "a list": ("[]", "it is no JSON Web Key Set"),
    "no keys": ("{}", "it is no JSON Web Key Set"),
    "keys that are none": ('{"keys": ["x"]}', "it is no JSON Web Key Set"),
    "an empty set": (jwks(), "no public key for signatures"),
    "too many keys": (jwks(*[{"kty": "x"}] * (MAX_KEYS + 1)), "it has 65 keys, 64 at most"),
    "too long": (" " * MAX_JWKS_CHARACTERS + "{", "it has 262,145 characters, 262,144 at most"),
    "a private RSA key": (jwks({**RSA, "d": "AQAB"}), "keys[0] is a private or symmetric key"),
    "a private key of another purpose": (jwks(EC, {**RSA, "d": 5, "use": "enc"}), "keys[1] is a private or symmetric"),
    "a symmetric key": (jwks({"kty": "oct", "k": "c2VjcmV0"}), "keys[0] is a private or symmetric key"),
    "a symmetric key without its key": (jwks({"kty": "oct"}), "keys[0] is a private or symmetric key"),
    "a short modulus": (jwks(public_jwk("RSA-1024")), "keys[0] has a modulus of 1,024 bits"),
    "a long modulus": (jwks({**RSA, "n": "_" * 1400}), "keys[0] has a modulus of 8,400 bits"),
    "an even modulus": (jwks({**RSA, "n": MODULUS[:-4] + "AAAA"}), "keys[0] has a modulus of"),
    "no modulus": (jwks(without(RSA, "n")), "keys[0] has no member n in base64url"),
    "an exponent of one": (jwks({**RSA, "e": "AQ"}), "keys[0] has an exponent that is even, below 3"),
    "an even exponent": (jwks({**RSA, "e": "BA"}), "keys[0] has an exponent that is even, below 3"),
    "an exponent without end": (jwks({**RSA, "e": "_" * 40 + "8"}), "keys[0] has"),
    "a long exponent": (jwks({**RSA, "e": "AQAAAAE"[:-1] + "E"}), "keys[0] has an exponent that is even, below 3"),
    "padding": (jwks({**ED, "x": ED["x"] + "="}), "keys[0] has no member x in base64url"),
    "a length that base64 does not have": (jwks({**ED, "x": "abcde"}), "keys[0] has no member x in base64url"),
    "bits left over": (jwks({**ED, "x": ED["x"][:-1] + "B"}), "keys[0] has a member x whose base64url has bits left"),
    "a short point": (jwks({**ED, "x": "AAAA"}), "keys[0] has no x of 32 bytes, as Ed25519 needs"),
    "a point off its curve": (jwks({**EC, "x": EC["y"], "y": EC["x"]}), "keys[0] is no point of the curve P-256"),
    "a point of another curve": (jwks({**EC, "crv": "P-384"}), "keys[0] is no point of the curve P-384"),
    "a coordinate beyond the field": (jwks({**EC, "x": "_" * 42 + "8"}), "keys[0] is no point of the curve P-256"),
    "a point without y": (jwks(without(EC, "y")), "keys[0] has no member y in base64url"),
    "two keys of one id": (jwks({**EC, "kid": "a"}, {**public_jwk("P-256", 1), "kid": "a"}), "have the same kid"),
    "two keys without an id": (jwks(EC, public_jwk("P-256", 1)), "have the same kid, or none"),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_set_that_is_not_used_says_why(text, reason):
    with pytest.raises(JwksError) as caught:
        read_jwks(text)
    assert reason in str(caught.value)


def test_no_sentence_shows_a_value_of_the_set():
    secret = "c2VjcmV0LXZhbHVl"
    broken = [jwks({"kty": "oct", "k": secret}), jwks({**RSA, "n": secret}), jwks({"kty": 5, "k": secret}), secret]
    for text in broken:
        with pytest.raises(JwksError) as caught:
            read_jwks(text)
        assert secret not in str(caught.value)


def test_two_keys_of_one_id_for_different_algorithms_are_told_apart():
    used = read_jwks(jwks({**EC, "kid": "a"}, {**ED, "kid": "a"}))
    assert [each.algorithms for each in used] == [("ES256",), ("EdDSA",)]


def test_a_set_is_written_in_one_way():
    given = jwks({**EC, "kid": "a", "x5c": ["x"]}, {**RSA, "use": "enc"}, {"alg": "RS256", **RSA}, ED)
    keys = read_jwks(given)
    text = canonical_jwks(keys)
    assert json.loads(text) == {
        "keys": [
            {"kty": "EC", "kid": "a", "alg": "ES256", "crv": "P-256", "x": EC["x"], "y": EC["y"]},
            {"kty": "RSA", "alg": "RS256", "n": RSA["n"], "e": RSA["e"]},
            {"kty": "OKP", "alg": "EdDSA", "crv": "Ed25519", "x": ED["x"]},
        ]
    }
    assert (read_jwks(text), canonical_jwks(read_jwks(text))) == (keys, text)
