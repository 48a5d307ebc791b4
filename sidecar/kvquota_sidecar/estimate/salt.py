"""The cache salt that keeps one tenant's cached blocks from another's requests.

Decides the value that replaces the client's own `cache_salt`. Pure.

Invariants:

1. Two tenants never share a salt, whatever their clients send: the digest is keyed, and both parts are framed by
   their lengths, so no pair of parts can be moved into another pair.
2. The engine accepts it: not empty, at most 128 characters, none of `@ / \\ NUL`.
3. The same tenant and the same client salt always give the same salt, so its own prefixes are found again.
4. Where the pool shares its cache between tenants, a request without a salt of its own shares it with all others. One
   with a salt asked to be kept apart: it gets the same salt as in a pool that keeps tenants apart, so that no client
   can get at another tenant's blocks by guessing its salt.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, Literal

_PREFIX: Final = "kvq."


def engine_salt(key: bytes, isolation: Literal["Tenant", "Shared"], tenant: str, client_salt: str = "") -> str | None:
    """The salt that the engine is sent; None for none. `client_salt`: what the client asked for, "" for none."""
    return None if isolation == "Shared" and not client_salt else derived_salt(key, tenant, client_salt)


def derived_salt(key: bytes, tenant: str, client_salt: str = "") -> str:
    """68 characters; `key` is the pool's own secret, `client_salt` what the client asked for ("" for none)."""
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for part in (tenant.encode(), client_salt.encode(errors="surrogatepass")):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return _PREFIX + digest.hexdigest()
