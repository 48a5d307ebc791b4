"""Issuers of tokens, trusted peers and what they show, for tests of who a client is."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt.algorithms import get_default_algorithms

from kvquota_api.jwks import canonical_jwks, read_jwks
from kvquota_api.pod_config import JwtIssuer, PoolIdentity, TrustedPeer, key_digest, sealed
from kvquota_sidecar.proxy.head import Head, read_head

NOW = 1_800_000_000.0  # Unix seconds
ISSUER, AUDIENCE = "https://issuer.example", "kvquota"
PEER_SECRET = "kvq-" + "9f2b4d6e" * 8
KINDS = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    "ES256": "P-256",
    "ES384": "P-384",
    "ES512": "P-521",
    "EdDSA": "Ed25519",
}


@cache
def private_key(kind: str, number: int) -> Any:
    """A key of a kind: RSA, RSA-1024, P-256, P-384, P-521, secp256k1, Ed25519, Ed448; another one for every number."""
    makers = {
        "RSA": lambda: rsa.generate_private_key(65537, 2048),
        "RSA-1024": lambda: rsa.generate_private_key(65537, 1024),
        "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
        "P-521": lambda: ec.generate_private_key(ec.SECP521R1()),
        "secp256k1": lambda: ec.generate_private_key(ec.SECP256K1()),
        "Ed25519": ed25519.Ed25519PrivateKey.generate,
        "Ed448": ed448.Ed448PrivateKey.generate,
    }
    return makers[kind]()


def public_jwk(kind: str, number: int = 0, **members: Any) -> dict[str, Any]:
    """The public part of a key as a JWK, with more members."""
    name = {"RSA": "RS256", "RSA-1024": "RS256", "Ed25519": "EdDSA", "Ed448": "EdDSA"}.get(kind, "ES256")
    way: Any = get_default_algorithms()[name]
    written: dict[str, Any] = way.to_jwk(private_key(kind, number).public_key(), as_dict=True)
    return {name: value for name, value in written.items() if name != "key_ops"} | members


def jwks(*keys: dict[str, Any]) -> str:
    return json.dumps({"keys": list(keys)})


def claims(**changes: Any) -> dict[str, Any]:
    """What a good token of the tenant `search` claims; None takes a claim away."""
    good = {"iss": ISSUER, "aud": AUDIENCE, "exp": NOW + 300, "tenant": "search"}
    return {name: value for name, value in {**good, **changes}.items() if value is not None}


def token(said: dict[str, Any] | bytes | None = None, algorithm: str = "ES256", number: int = 0, **header: Any) -> str:
    """A token that the key of this kind and number signed, whatever its header says; None takes a member away."""
    whole = {"alg": algorithm, "typ": "JWT", "kid": f"k{number}", **header}
    written = {name: value for name, value in whole.items() if value is not None}
    return signed(json.dumps(written).encode(), body(said), algorithm, number)


def signed(header: bytes, said: bytes, algorithm: str = "ES256", number: int = 0) -> str:
    """A token of these bytes."""
    start = unsigned(header, said)
    signature = get_default_algorithms()[algorithm].sign(start.encode(), private_key(KINDS[algorithm], number))
    return f"{start}.{in_base64url(signature)}"


def unsigned(header: bytes, said: bytes) -> str:
    """The first two parts of a token."""
    return f"{in_base64url(header)}.{in_base64url(said)}"


def body(said: dict[str, Any] | bytes | None) -> bytes:
    """Claims as they are signed; None for good ones."""
    return said if isinstance(said, bytes) else json.dumps(claims() if said is None else said).encode()


def in_base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass(frozen=True)
class Who:
    """An identity to be made: `keys` by the key, its tenant; `values` of the peer's header, None for no peer."""

    pepper: str
    keys: dict[str, str] = field(default_factory=dict)
    jwks: str | None = None
    values: dict[str, str] | None = None
    header: str = "X-Tenant"

    def identity(self) -> PoolIdentity:
        issuer = (
            None
            if self.jwks is None
            else JwtIssuer(issuer=ISSUER, audience=AUDIENCE, tenant_claim="tenant", namespace="shop", keys=self.jwks)
        )
        peer = (
            None
            if self.values is None
            else TrustedPeer(name=self.header, secret=key_digest(self.pepper, PEER_SECRET), tenants=self.values)
        )
        keys = {key_digest(self.pepper, key): tenant for key, tenant in self.keys.items()}
        return sealed(PoolIdentity(digest="", pepper=self.pepper, api_keys=keys, jwt=issuer, trusted_peer=peer))


def signing_set(*algorithms: str, numbers: Iterable[int] = (0,)) -> str:
    """The set that verifies `token` of these algorithms and numbers."""
    keys = [public_jwk(KINDS[each], number, kid=f"k{number}", alg=each) for each in algorithms for number in numbers]
    return canonical_jwks(read_jwks(jwks(*keys)))


def head(*headers: bytes, path: str = "/v1/completions") -> Head:
    """The head of a POST."""
    found = read_head(b"\r\n".join([f"POST {path} HTTP/1.1".encode(), b"Host: a", *headers, b""]))
    assert isinstance(found, Head)
    return found
