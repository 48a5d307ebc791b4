"""What is kept of credentials that were known before."""

import gc
import weakref

import pytest

from identities import NOW, PEER_SECRET, Who, claims, head, signing_set, token
from kvquota_sidecar.proxy.identity import Directory, Failure, identify, to_withhold
from kvquota_sidecar.proxy.identity.identifying import STRANGER_SECONDS
from kvquota_sidecar.proxy.identity.naming import Owner
from kvquota_sidecar.proxy.identity.remembering import MAX_REMEMBERED, Remembered
from kvquota_sidecar.proxy.identity.tokens import LEEWAY_SECONDS
from sidecar_rig import BATCH, KEYS, PEPPER, SEARCH, config

KEY, UNKNOWN = KEYS[SEARCH], Failure.UNKNOWN


def directory(keys=None):
    who = Who(PEPPER, keys=keys or {KEY: SEARCH}, jwks=signing_set("ES256"), values={"search": SEARCH})
    return Directory(config(), who.identity())


def bearer(text):
    return head(b"Authorization: Bearer " + text.encode())


def everything_held(thing, depth=12):
    """Every string of bytes or text that can be reached from it, as far as objects of this program and tables go."""
    found, level, seen = [], [thing], set()
    for _ in range(depth):
        level = [each for each in gc.get_referents(*level) if id(each) not in seen and not isinstance(each, type)]
        seen |= {id(each) for each in level}
        found += [each for each in level if isinstance(each, bytes | str)]
    return found


SHOWN = {
    "a key": (bearer(KEY), KEY),
    "a token": (bearer(token()), token()),
    "a peer's secret": (
        head(b"X-Kvquota-Peer-Secret: " + PEER_SECRET.encode(), b"X-Tenant: search"),
        PEER_SECRET,
    ),
}


@pytest.mark.parametrize(("request_head", "secret"), SHOWN.values(), ids=SHOWN)
def test_no_credential_is_kept_or_shown(request_head, secret):
    where = directory()
    assert identify(request_head, where, NOW) == SEARCH
    held = everything_held(where.remembered)
    assert held
    assert not [each for each in held if secret in (each if isinstance(each, str) else each.decode("latin-1"))]
    assert secret not in repr(where)
    assert PEPPER not in f"{where!r} {where.remembered!r} {where.peer!r}"


def test_an_answer_is_of_one_directory_only():
    before, after = directory(), directory({KEY: BATCH})
    assert [identify(bearer(KEY), each, NOW) for each in (before, after, before)] == [SEARCH, BATCH, SEARCH]


def test_the_route_belongs_to_the_question():
    where, line = directory(), b"X-Api-Key: " + KEY.encode()
    asked = [identify(head(line, path=path), where, NOW) for path in ("/v1/messages", "/v1/completions") * 2]
    assert asked == [SEARCH, UNKNOWN] * 2


def test_strangers_push_nobody_out():
    where = directory()
    mark = where.mark("/v1/completions", where.presented(bearer(KEY).headers))
    assert identify(bearer(KEY), where, NOW) == SEARCH
    for number in range(MAX_REMEMBERED + 1):
        assert identify(bearer(f"stranger-{number}"), where, NOW) == UNKNOWN
    assert where.remembered.recall(mark, NOW) == Owner(SEARCH)


def test_the_oldest_goes_where_there_are_too_many():
    remembered = Remembered(b"")
    marks = [number.to_bytes(4, "big") for number in range(MAX_REMEMBERED + 1)]
    for mark in marks[:-1]:
        remembered.keep(mark, Owner("a"))
    remembered.keep(marks[0], Owner("b"))  # seen again, so the second is the oldest now
    remembered.keep(marks[-1], Owner("a"))
    assert [remembered.recall(marks[place], NOW) for place in (0, 1, 2, -1)] == [
        Owner("b"),
        None,
        Owner("a"),
        Owner("a"),
    ]


def test_headers_are_told_apart_by_name_and_place():
    mark = Remembered(b"").mark
    parts = [((b"a", b"bc"),), ((b"ab", b"c"),), ((b"a", b"b"), (b"c", b"")), ((b"a", b"b"),)]
    assert len({mark(b"", each) for each in parts} | {mark(b"messages", parts[0])}) == 5
    assert Remembered(b"1").mark(b"", parts[0]) != Remembered(b"2").mark(b"", parts[0])


def test_what_is_noted_of_a_head_is_of_one_directory_and_of_one_time_only():
    key, signed = bearer(KEY), bearer(token())
    before, after, late = directory(), directory({KEY: BATCH}), NOW + 3600
    assert [identify(key, each, NOW) for each in (before, after, before, before)] == [SEARCH, BATCH, SEARCH, SEARCH]
    assert [identify(signed, before, at) for at in (NOW, NOW, late, NOW)] == [SEARCH, SEARCH, UNKNOWN, SEARCH]
    remove = Directory(config(authorization="Remove"), before.identity)
    kept = frozenset({b"authorization"})
    assert [kept <= to_withhold(key, each) for each in (before, before, remove, before)] == [False, False, True, False]


def test_a_head_that_names_nobody_is_looked_at_again_in_a_second():
    early = bearer(token(claims(nbf=NOW + LEEWAY_SECONDS + 0.5)))
    where, now = directory(), (NOW, NOW + 0.9, NOW + STRANGER_SECONDS)
    assert [identify(early, where, at) for at in now] == [UNKNOWN, UNKNOWN, SEARCH]
    two = head(b"Authorization: a", b"Authorization: b")
    assert [identify(two, where, at) for at in now] == [Failure.CONTRADICTION] * 3
    stranger, anonymous = bearer("EMPTY"), Directory(config(anonymous_tenant=BATCH), None)
    assert [identify(stranger, anonymous, at) for at in now] == [BATCH] * 3


@pytest.mark.interpreted  # a compiled object has no weak references
def test_what_is_noted_of_a_head_holds_no_directory_and_no_credential():
    request = bearer(KEY)
    gone = directory()
    assert identify(request, gone, NOW) == SEARCH
    to_withhold(request, gone)
    gone = weakref.ref(gone)
    gc.collect()
    assert gone() is None
    assert not [each for each in everything_held(request.notes) if KEY in str(each)]
