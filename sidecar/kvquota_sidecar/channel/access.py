"""Who may ask what of the admin port.

Decides from the token and the addresses of a connection. Pure.

Invariants:

1. Without a token nobody is authenticated; tokens are compared in constant time.
2. The drain is started only from this pod or its node: loopback, one of the pod's own addresses (the two ends of the
   connection are the same), or one of the node's.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvquota_sidecar.proxy.head import Head
from kvquota_sidecar.proxy.service import Ends

_BEARER: Final = b"bearer "


@dataclass(slots=True)
class Token:
    """The channel's token; empty until one is known."""

    value: bytes = b""

    def take(self, content: bytes) -> None:
        """The content of the token's file; white space around it is not part of it."""
        self.value = content.strip()

    def is_in(self, head: Head) -> bool:
        """Whether the request carries it."""
        given = head.values(b"authorization")
        if not self.value or len(given) != 1 or given[0][: len(_BEARER)].lower() != _BEARER:
            return False
        return hmac.compare_digest(given[0][len(_BEARER) :].strip(), self.value)


def is_near(ends: Ends, node_addresses: Iterable[str]) -> bool:
    """Whether a connection comes from this pod or its node; a unix socket (no addresses) is this pod's own."""
    if not ends.remote:
        return True
    remote = _address(ends.remote)
    if remote is None:
        return False
    known = (ends.local, *node_addresses)
    return remote.is_loopback or remote in {_address(each) for each in known}


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped
