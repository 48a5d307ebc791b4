"""Key sets and tokens of any content: judged, never an error, and what is used can be loaded."""

import json

from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import get_default_algorithms

from identities import NOW, Who, head, public_jwk, signing_set, token
from kvquota_api.jwks import JwksError, canonical_jwks, read_jwks
from kvquota_sidecar.proxy.identity import Directory, Failure, identify
from sidecar_rig import PEPPER, config

KINDS = ("RSA", "P-256", "P-384", "P-521", "secp256k1", "Ed25519", "Ed448")
GOOD = [public_jwk(kind, kid="k0") for kind in KINDS]
MEMBERS = ("kty", "kid", "use", "key_ops", "alg", "n", "e", "crv", "x", "y")
VALUES = st.one_of(
    st.none(),
    st.integers(-1, 5),
    st.sampled_from(["RSA", "EC", "OKP", "P-256", "P-384", "Ed25519", "ES256", "RS512", "EdDSA", "sig", "enc", "AQAB"]),
    st.sampled_from([value for key in GOOD for value in key.values()]),
    st.text("AZaz09-_=+/", max_size=90),
    st.lists(st.sampled_from(["verify", "sign"]), max_size=2),
)
KEY = st.builds(
    lambda key, changes: {**key, **changes},
    st.sampled_from(GOOD),
    st.dictionaries(st.sampled_from(MEMBERS), VALUES, max_size=2),
)


@given(st.lists(KEY, max_size=4))
def test_every_key_that_is_used_can_be_loaded_and_is_written_in_one_way(keys):
    try:
        used = read_jwks(json.dumps({"keys": keys}))
    except JwksError:
        return
    ways = get_default_algorithms()
    for key in used:
        assert ways[key.algorithms[0]].from_jwk({"kty": key.kind, **dict(key.figures)}) is not None
    assert read_jwks(canonical_jwks(used)) == used


WHERE = Directory(config(), Who(PEPPER, keys={}, jwks=signing_set("ES256"), values={"a": "shop/search"}).identity())
TOKEN = token()


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_no_text_that_is_shown_raises_and_none_names_anybody(text):
    line = bytes(byte for byte in text if byte >= 0x20 and byte != 0x7F)
    shown = head(b"Authorization: Bearer " + line, b"X-Tenant: " + line, b"X-Kvquota-Peer-Secret: " + line)
    assert isinstance(identify(shown, WHERE, NOW), Failure)


@given(st.integers(0, len(TOKEN) - 1), st.sampled_from("AZaz09-_.=x"))
def test_a_token_of_which_one_letter_differs_is_no_good(place, letter):
    """But for the last letter: its lowest bits are left over."""
    changed = TOKEN[:place] + letter + TOKEN[place + 1 :]
    if changed == TOKEN or place == len(TOKEN) - 1:
        return
    assert identify(head(b"Authorization: Bearer " + changed.encode()), WHERE, NOW) is Failure.UNKNOWN
