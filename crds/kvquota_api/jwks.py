"""JSON Web Key Sets: whose signatures on tokens are believed.

Decides which keys of a set are used and for which algorithms, and what is wrong with a set. Pure: figures only, no
cryptography.

Invariants:

1. Only public keys of asymmetric algorithms are used. A set that holds a private or symmetric key is refused: whoever
   can read it could sign.
2. A key that is used can be loaded: its size is one that is safe and bounded, its point is on its curve.
3. A key fits the algorithms of its own kind only, and where it names one, only that. Nothing in a token widens this.
4. Keys for other purposes and of kinds that this version does not know are passed over (RFC 7517, section 5). A set
   that leaves none is refused.
5. No two keys can be meant by one token: the same key id and a common algorithm refuse the set.
6. No message holds a value of the set.

Sizes and algorithms: RFC 7518, sections 3.1, 6.2, 6.3; RFC 8037.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Literal

import msgspec

MAX_JWKS_CHARACTERS: Final = 262_144  # of a set: 64 keys with their certificates
MAX_KEYS: Final = 64  # issuers publish two to ten
MIN_RSA_BITS: Final = 2048  # RFC 7518, section 3.3
MAX_RSA_BITS: Final = 8192  # bounds what one verification costs
MAX_RSA_EXPONENT: Final = 2**32 - 1  # real ones are 65537; a larger one costs more

_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]+")
_RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_EDWARDS: Final[Mapping[str, int]] = {"Ed25519": 32, "Ed448": 57}  # bytes of a point


class JwksError(ValueError):
    """A set that is not used; the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """`key_id`: "" where it has none. `figures`: the members of the JWK that make the key, as they are written."""

    key_id: str
    kind: Literal["RSA", "EC", "OKP"]
    algorithms: tuple[str, ...]
    figures: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Curve:
    """y² = x³ - 3x + b modulo `prime` (FIPS 186-5; SEC 2, section 2), coordinates of `size` bytes."""

    algorithm: str
    size: int
    prime: int
    b: int

    def holds(self, x: int, y: int) -> bool:
        inside = x < self.prime and y < self.prime
        return inside and (y * y - (x * x * x - 3 * x + self.b)) % self.prime == 0


_CURVES: Final[Mapping[str, _Curve]] = {
    "P-256": _Curve(
        "ES256",
        32,
        2**256 - 2**224 + 2**192 + 2**96 - 1,
        0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B,
    ),
    "P-384": _Curve(
        "ES384",
        48,
        2**384 - 2**128 - 2**96 + 2**32 - 1,
        0xB3312FA7E23EE7E4988E056BE3F82D19181D9C6EFE8141120314088F5013875AC656398D8A2ED19D2A85C8EDD3EC2AEF,
    ),
    "P-521": _Curve(
        "ES512",
        66,
        2**521 - 1,
        0x0051953EB9618E1C9A1F929A21A0B68540EEA2DA725B99B315F3B8B489918EF109E156193951EC7E937B1652C0BD3BB1BF073573DF883D2C34F1EF451FD46B503F00,
    ),
}
_ABSENT: Final = msgspec.Raw()  # false


class _Jwk(msgspec.Struct, frozen=True, kw_only=True):
    kty: str
    kid: str = ""
    use: str | None = None
    key_ops: tuple[str, ...] | None = None
    alg: str | None = None
    n: str = ""
    e: str = ""
    crv: str = ""
    x: str = ""
    y: str = ""
    d: msgspec.Raw = _ABSENT
    k: msgspec.Raw = _ABSENT


class _Set(msgspec.Struct, frozen=True):
    keys: tuple[_Jwk, ...]


def read_jwks(text: str) -> tuple[PublicKey, ...]:
    """The keys of a set that may verify tokens, at least one. Raises JwksError."""
    if len(text) > MAX_JWKS_CHARACTERS:
        raise JwksError(
            f"it has {len(text):,} characters, {MAX_JWKS_CHARACTERS:,} at most are read: publish fewer keys"
        )
    try:
        found = msgspec.json.decode(text, type=_Set).keys
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise JwksError(f"it is no JSON Web Key Set ({error}): publish the set as the issuer has it") from error
    if len(found) > MAX_KEYS:
        raise JwksError(f"it has {len(found)} keys, {MAX_KEYS} at most are read: publish fewer")
    used = tuple(key for place, jwk in enumerate(found) if (key := _read(jwk, place)) is not None)
    if not used:
        raise JwksError("it has no public key for signatures (RSA, EC or OKP): publish the one that signs the tokens")
    _refuse_twins(used)
    return used


def canonical_jwks(keys: tuple[PublicKey, ...]) -> str:
    """The same keys as a set of their own, with nothing else in it: two sets of the same keys give the same text."""
    return msgspec.json.encode({"keys": [_written(key) for key in keys]}).decode()


def _written(key: PublicKey) -> dict[str, str]:
    named = {"kid": key.key_id} if key.key_id else {}
    narrowed = {"alg": key.algorithms[0]} if len(key.algorithms) == 1 else {}
    return {"kty": key.kind, **named, **narrowed, **dict(key.figures)}


def _read(jwk: _Jwk, place: int) -> PublicKey | None:
    """None for a key that is for something else."""
    if jwk.d or jwk.k or jwk.kty == "oct":
        raise JwksError(f"keys[{place}] is a private or symmetric key: publish public keys only, and replace this one")
    if jwk.use not in (None, "sig") or (jwk.key_ops is not None and "verify" not in jwk.key_ops):
        return None
    try:
        return _of_kind(jwk)
    except _FigureError as error:
        raise JwksError(f"keys[{place}] {error}: publish the key as the issuer has it") from error


class _FigureError(ValueError):
    pass


def _of_kind(jwk: _Jwk) -> PublicKey | None:
    if jwk.kty == "RSA":
        return _narrowed(jwk, "RSA", _RSA_ALGORITHMS, _rsa(jwk))
    if jwk.kty == "EC" and jwk.crv in _CURVES:
        return _narrowed(jwk, "EC", (_CURVES[jwk.crv].algorithm,), _elliptic(jwk, _CURVES[jwk.crv]))
    if jwk.kty == "OKP" and jwk.crv in _EDWARDS:
        return _narrowed(jwk, "OKP", ("EdDSA",), _edwards(jwk, _EDWARDS[jwk.crv]))
    return None


def _narrowed(
    jwk: _Jwk, kind: Literal["RSA", "EC", "OKP"], algorithms: tuple[str, ...], figures: tuple[tuple[str, str], ...]
) -> PublicKey | None:
    fitting = algorithms if jwk.alg is None else tuple(each for each in algorithms if each == jwk.alg)
    return PublicKey(jwk.kid, kind, fitting, figures) if fitting else None


def _rsa(jwk: _Jwk) -> tuple[tuple[str, str], ...]:
    modulus, exponent = (int.from_bytes(_bytes(name, text)) for name, text in (("n", jwk.n), ("e", jwk.e)))
    if not MIN_RSA_BITS <= modulus.bit_length() <= MAX_RSA_BITS or modulus % 2 == 0:
        raise _FigureError(
            f"has a modulus of {modulus.bit_length():,} bits; RSA keys of {MIN_RSA_BITS:,} to {MAX_RSA_BITS:,} bits are"
            " used, and a modulus is odd"
        )
    if not 3 <= exponent <= MAX_RSA_EXPONENT or exponent % 2 == 0:
        raise _FigureError("has an exponent that is even, below 3 or above 32 bits")
    return ("n", jwk.n), ("e", jwk.e)


def _elliptic(jwk: _Jwk, curve: _Curve) -> tuple[tuple[str, str], ...]:
    x, y = (_bytes(name, text) for name, text in (("x", jwk.x), ("y", jwk.y)))
    if {len(x), len(y)} != {curve.size} or not curve.holds(int.from_bytes(x), int.from_bytes(y)):
        raise _FigureError(f"is no point of the curve {jwk.crv}")
    return ("crv", jwk.crv), ("x", jwk.x), ("y", jwk.y)


def _edwards(jwk: _Jwk, size: int) -> tuple[tuple[str, str], ...]:
    if len(_bytes("x", jwk.x)) != size:
        raise _FigureError(f"has no x of {size} bytes, as {jwk.crv} needs")
    return ("crv", jwk.crv), ("x", jwk.x)


def _bytes(name: str, text: str) -> bytes:
    """Of base64url without padding, written in the one way in which these bytes are."""
    if _BASE64URL.fullmatch(text) is None or len(text) % 4 == 1:
        raise _FigureError(f"has no member {name} in base64url")
    value = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if urlsafe_b64encode(value).rstrip(b"=").decode() != text:
        raise _FigureError(f"has a member {name} whose base64url has bits left over")
    return value


def _refuse_twins(keys: tuple[PublicKey, ...]) -> None:
    for one, other in combinations(keys, 2):
        if one.key_id == other.key_id and set(one.algorithms) & set(other.algorithms):
            raise JwksError("two of its keys have the same kid, or none, for the same algorithm: give each its own kid")
