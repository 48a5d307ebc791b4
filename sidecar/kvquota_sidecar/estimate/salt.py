"""The cache salt that keeps one tenant's cached blocks from another's requests.

Decides the value that replaces the client's own `cache_salt`. Pure.

Invariants:

1. Two tenants never share a salt, whatever their clients send: the digest is keyed, and both parts are framed by
   their lengths, so no pair of parts can be moved into another pair.
2. The engine accepts it: not empty, at most 128 characters, none of `@ / \\ NUL`.
3. The same tenant and the same client salt always give the same salt, so its own prefixes are found again.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

_PREFIX: Final = "kvq."


def derived_salt(key: bytes, tenant: str, client_salt: str = "") -> str:
    """68 characters; `key` is the pool's own secret, `client_salt` what the client asked for ("" for none)."""
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for part in (tenant.encode(), client_salt.encode(errors="surrogatepass")):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return _PREFIX + digest.hexdigest()
