"""Who a client is.

Decides which tenant a request belongs to, from its credentials alone. The time is given.

Invariants:

1. A credential is an API key, looked up by its keyed digest; a signed token of the pool's issuer; or a trusted peer's
   secret beside the header in which that peer names a tenant. None is kept or written anywhere.
2. Two credentials of one kind, or two kinds that name different tenants or of which one names nobody, are a
   contradiction, never a choice. It does not matter whether the route would look at both.
3. No header that names a tenant is believed without the peer's secret: then it is as if it were not there. None is
   believed in another spelling (`x_tenant` for `x-tenant`), nor is the secret; beside the secret it is a contradiction.
4. A tenant that the config does not know is unknown, whatever the identity says.
5. The engine sees one credential at most: the one that the sender is known by. It never sees a peer's secret.
6. Whatever is wrong with a credential, the answer is the same.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from kvquota_sidecar.proxy.head import Head, Headers
from kvquota_sidecar.proxy.identity.directory import MISSPELT, PEER_SECRET_HEADER, Directory
from kvquota_sidecar.proxy.identity.naming import NOBODY, Owner
from kvquota_sidecar.records import Value


class Failure(Enum):
    """Why a request has no tenant."""

    CONTRADICTION = "its credentials disagree"
    UNKNOWN = "nobody knows them"


# How long a head that names nobody is not looked at again: so late does a token work that was not valid yet.
STRANGER_SECONDS: Final = 1.0
_KNOWN: Final = "identity.known"  # notes of a head, each beside the stamp of the Directory that it is by
_WITHHELD: Final = "identity.withheld"
_BEARER: Final = b"bearer "
_AMBIGUOUS: Final = b","  # joins two headers of one name into one on their way here


class _Noted(Value, frozen=True):
    """Of one head by one Directory: whom it names, from when until when (Unix seconds)."""

    stamp: Any  # is that of the Directory, or is not
    since: float
    until: float
    answer: str | Failure


def identify(head: Head, directory: Directory, now: float) -> str | Failure:
    """The tenant's id ("namespace/tenant"), or why there is none. `now` in Unix seconds."""
    noted: _Noted | None = head.notes.get(_KNOWN)
    if noted is not None and noted.stamp is directory.stamp and noted.since <= now < noted.until:
        return noted.answer
    owner = _found(head, directory, now)
    answer, until = _answer(owner, directory), now + STRANGER_SECONDS
    if isinstance(owner, Owner) and owner.tenant in directory.tenants:
        until = owner.until
    head.notes[_KNOWN] = _Noted(directory.stamp, now, until, answer)
    return answer


def to_withhold(head: Head, directory: Directory) -> frozenset[bytes]:
    """The headers that say who the sender is and that the engine does not get to see, in lower case and with `-`."""
    noted: tuple[object, frozenset[bytes]] | None = head.notes.get(_WITHHELD)
    if noted is None or noted[0] is not directory.stamp:
        noted = head.notes[_WITHHELD] = (directory.stamp, _to_withhold(head, directory))
    return noted[1]


def _to_withhold(head: Head, directory: Directory) -> frozenset[bytes]:
    if directory.config.authorization == "Remove":
        return directory.watched
    there = {name for name, _ in directory.presented(head.headers)}
    known_by = next((name for name in directory.places(head.path) if name in there), None)
    return directory.watched if known_by is None else directory.watched - {known_by}


def _answer(owner: Owner | Failure, directory: Directory) -> str | Failure:
    if isinstance(owner, Failure):
        return owner
    known = owner.tenant in directory.tenants
    return owner.tenant if known else directory.config.anonymous_tenant or Failure.UNKNOWN


def _found(head: Head, directory: Directory, now: float) -> Owner | Failure:
    """Whom the credentials name, as it was found before, or anew."""
    presented = directory.presented(head.headers)
    if not presented:
        return NOBODY
    mark = directory.mark(head.path, presented)
    known = directory.remembered.recall(mark, now)
    if known is not None:
        return known
    owner = _owner(presented, head.path, directory, now)
    if isinstance(owner, Owner) and owner.tenant in directory.tenants:
        directory.remembered.keep(mark, owner)
    return owner


def _owner(presented: Headers, path: str, directory: Directory, now: float) -> Owner | Failure:
    values = dict(presented)
    if len(values) < len(presented):
        return Failure.CONTRADICTION
    keys = {name: _key(name, values[name]) for name in directory.credential_names if name in values}
    owners = {key: directory.owner(key, now) for key in keys.values()}
    peer = _peer(values, directory)
    if isinstance(peer, Failure):
        return peer
    named = [*owners.values()] if peer is None else [*owners.values(), peer]
    if len(named) > 1 and (len({each.tenant for each in named}) > 1 or not named[0].tenant):
        return Failure.CONTRADICTION
    known_by = next((owners[keys[name]] for name in directory.places(path) if name in keys), NOBODY)
    tenant = known_by.tenant if peer is None else peer.tenant
    return Owner(tenant, min((each.until for each in named), default=known_by.until))


def _peer(values: dict[bytes, bytes], directory: Directory) -> Owner | Failure | None:
    """Whom a peer names; None where none shows itself, or it names nobody."""
    secret, value = values.get(PEER_SECRET_HEADER), values.get(directory.peer_name)
    if secret is None or directory.peer is None:
        return None
    if value is not None and _AMBIGUOUS in value:
        return Failure.CONTRADICTION
    named = directory.peer.names(secret, value)
    return Failure.CONTRADICTION if MISSPELT[0] in values and named is not NOBODY else named


def _key(name: bytes, value: bytes) -> bytes:
    if name != b"authorization":
        return value
    return value[len(_BEARER) :].strip(b" \t") if value[: len(_BEARER)].lower() == _BEARER else b""
