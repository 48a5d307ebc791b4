"""How many connections the limit on open files leaves room for (RLIMIT_NOFILE).

A client's connection may need one to the engine, so it counts twice. Where they took all there are, the loop would
close new ones unread, probes among them, and nobody would hear of it; so a part stays out of their reach.
"""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kvquota_sidecar.listening import BACKLOG
from kvquota_sidecar.proxy.hub import KEPT
from kvquota_sidecar.settings import SettingsError

LEAST: Final = 64  # descriptors: with fewer the program does not get as far as to say what it lacks

ADMIN_CONNECTIONS: Final = 64  # operator, probes and Prometheus have one each, and some have two
# Descriptors that clients do not get: two for each connection of the admin port, as it may ask the engine; 64 for
# files, the log, the listening sockets and the loop; 96 for what the engine's tokenizer and metrics are asked.
_RESERVE: Final = 2 * (ADMIN_CONNECTIONS + KEPT) + 64 + 96


@dataclass(frozen=True, slots=True)
class Places:
    """Connections at a time: of clients, and on the admin port. `backlog`: that wait to be accepted, on each port; a
    loop accepts all of these at once, before it sees how many there are."""

    clients: int
    admin: int
    backlog: int


def require(least: int = LEAST) -> None:
    """Raise the limit as far as this process may. Raises SettingsError where that is too low to run at all."""
    raise_limit()
    has = limit()
    if has is not None and has < least:
        raise SettingsError(f"this program may open {has} files, and needs {least}: raise the limit (ulimit -n 1024)")


def raise_limit() -> None:
    """As far as this process may; what it cannot have it does without."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limit() -> int | None:
    """How many descriptors this process may have; None: as many as it likes."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def places(limit: int | None, wanted: int) -> Places:
    """What `limit` descriptors are enough for; `wanted`: connections of clients, at most."""
    if limit is None:
        return Places(wanted, ADMIN_CONNECTIONS, BACKLOG)
    reserve, backlog = min(_RESERVE, limit // 2), min(BACKLOG, max(1, limit // 8))
    clients = max(1, min(wanted, (limit - reserve - backlog) // 2))
    return Places(clients, max(1, min(ADMIN_CONNECTIONS, reserve // 5)), backlog)


def are_used_up(any_open: int) -> bool:
    """Whether this process gets no more of them; `any_open`: a descriptor."""
    try:
        os.close(os.dup(any_open))
    except OSError as error:
        return says_used_up(error)
    return False


def says_used_up(error: OSError) -> bool:
    """Whether that is what went wrong."""
    return error.errno in (errno.EMFILE, errno.ENFILE)
