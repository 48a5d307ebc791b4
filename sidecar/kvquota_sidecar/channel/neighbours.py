"""The node's address as the pod sees it: where the default routes lead.

Decides which address a kubelet calls from. The node's own address (`status.hostIP`) is not enough: where the pod hangs
on a bridge, the node calls it from the bridge's address, which is the pod's gateway. Pure but for `gateways`.

Formats: /proc/net/route has hexadecimal IPv4 addresses in the machine's byte order (little-endian wherever this runs),
/proc/net/ipv6_route has 32 digits in network order; flag 2 marks a gateway (linux/route.h RTF_GATEWAY).
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Final

_GATEWAY: Final = 0x2
_ANY_IPV4: Final = "00000000"
_ANY_IPV6: Final = "0" * 32


def gateways(proc: Path = Path("/proc/net")) -> tuple[str, ...]:
    """The gateways of the default routes; none where they cannot be read."""
    return (*ipv4_gateways(_text(proc / "route")), *ipv6_gateways(_text(proc / "ipv6_route")))


def ipv4_gateways(table: str) -> tuple[str, ...]:
    """The default gateways of a text of /proc/net/route."""
    rows = [line.split() for line in table.splitlines()[1:]]
    found = [row[2] for row in rows if len(row) > 3 and row[1] == _ANY_IPV4 and int(row[3], 16) & _GATEWAY]
    return tuple(str(ipaddress.IPv4Address(int.from_bytes(bytes.fromhex(each), "little"))) for each in found)


def ipv6_gateways(table: str) -> tuple[str, ...]:
    """The default gateways of a text of /proc/net/ipv6_route."""
    rows = [line.split() for line in table.splitlines()]
    defaults = [row for row in rows if len(row) > 8 and row[0] == _ANY_IPV6 and row[1] == "00"]
    found = [row[4] for row in defaults if int(row[8], 16) & _GATEWAY]
    return tuple(str(ipaddress.IPv6Address(bytes.fromhex(each))) for each in found)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
