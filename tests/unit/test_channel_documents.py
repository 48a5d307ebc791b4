"""Which documents come into force, and who may ask what of the admin port."""

import json
from dataclasses import replace

import pytest

from contract_versions import NEW_IN_CONFIG, NEW_IN_IDENTITY, written
from kvquota_api import pod_config
from kvquota_api.pod_config import PodConfig, PodRef
from kvquota_api.usage import InForce, Source
from kvquota_sidecar.channel.access import Token, is_near
from kvquota_sidecar.channel.adoption import Documents, offer_config, offer_identity
from kvquota_sidecar.proxy.head import Head, read_head
from kvquota_sidecar.proxy.service import Ends
from sidecar_rig import SEARCH, config, identity, share

OLD, OTHER = config(generation=5), config(generation=5, model="other")
IN_FORCE = Documents(config=OLD, source="Channel")


def offered(
    wanted: PodConfig | bytes, source: Source = "Channel", documents: Documents = IN_FORCE, uid: str = ""
) -> Documents:
    data = wanted if isinstance(wanted, bytes) else pod_config.encode(wanted)
    return offer_config(documents, data, source, uid)


def test_the_first_config_comes_into_force() -> None:
    assert offered(OLD, "File", Documents()) == Documents(config=OLD, source="File")


def test_a_newer_config_comes_into_force_and_clears_the_last_refusal() -> None:
    newer = config(generation=6, model="other")
    refused = offered(b"{}")
    assert refused.rejected is not None
    assert offered(newer, documents=refused) == Documents(config=newer, source="Channel")


def test_the_same_content_under_a_newer_generation_moves_the_generation() -> None:
    assert offered(config(generation=9)).in_force().generation == 9


def test_the_same_content_under_an_older_generation_changes_nothing_and_is_no_fault() -> None:
    assert offered(config(generation=2)) == IN_FORCE


def test_what_is_on_the_disk_is_reported_so_whatever_the_channel_repeats() -> None:
    on_disk = offered(OLD, "File")
    assert on_disk == replace(IN_FORCE, source="File")
    assert offered(OLD, "Channel", on_disk) == on_disk
    assert offered(config(generation=6), "Channel", on_disk).source == "Channel"


REFUSED: dict[str, tuple[bytes | PodConfig, str, int, str]] = {
    "not JSON": (b"{", "InvalidConfig", 0, "Channel: "),
    "an older one": (config(generation=4, model="other"), "GenerationWentBack", 4, "4 came after 5"),
    "another of the same generation": (OTHER, "GenerationWentBack", 5, "5 came after 5"),
}


@pytest.mark.parametrize(("wanted", "reason", "generation", "says"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_named_and_leaves_the_rest_alone(
    wanted: bytes | PodConfig, reason: str, generation: int, says: str
) -> None:
    after = offered(wanted)
    assert after.rejected is not None
    assert (after.rejected.reason, after.rejected.generation, says in after.rejected.message) == (
        reason,
        generation,
        True,
    )
    assert replace(after, rejected_config=None) == IN_FORCE


def test_a_file_that_is_behind_is_passed_over_in_silence() -> None:
    assert offered(config(generation=4, model="other"), "File") == IN_FORCE


def test_a_config_for_another_pod_is_refused_where_the_own_uid_is_known() -> None:
    other = config(generation=6, pod=PodRef(namespace="shop", name="pod-1", uid="uid-1"))
    refused = offered(other, uid="uid-0")
    assert refused.rejected is not None
    assert (refused.rejected.reason, refused.config) == ("WrongPod", OLD)
    assert offered(other, uid="").config == other
    assert offered(other, uid="uid-1").config == other


def test_a_message_of_any_length_fits_into_the_report() -> None:
    data = json.dumps({"x" * 5000: 1}).encode()
    rejected = offered(data).rejected
    assert rejected is not None
    assert len(rejected.message) <= 1024


def test_identity_is_judged_apart_from_the_config() -> None:
    known = identity()
    refused = offer_identity(IN_FORCE, b"{}", "File")
    assert refused.rejected is not None
    assert (refused.rejected.reason, refused.identity, refused.config) == ("InvalidIdentity", None, OLD)
    assert offer_identity(refused, pod_config.encode(known), "File") == replace(IN_FORCE, identity=known)


JUDGED_BY: dict[str, tuple[Documents, bool]] = {
    "nothing": (Documents(), False),
    "an identity": (Documents(identity=identity()), False),
    "a config": (Documents(OLD), False),
    "a config with an anonymous tenant among others": (Documents(config(anonymous_tenant=SEARCH)), False),
    "a config of nobody": (Documents(config(tenants=())), False),
    "a config whose only tenant everybody is": (
        Documents(config(share(SEARCH, soft=1, hard=2), anonymous_tenant=SEARCH)),
        True,
    ),
    "a config with one tenant who has a key": (Documents(config(share(SEARCH, soft=1, hard=2))), False),
    "both": (Documents(OLD, identity()), True),
}


@pytest.mark.parametrize(("documents", "expected"), JUDGED_BY.values(), ids=JUDGED_BY)
def test_requests_are_judged_once_it_can_be_told_whose_they_are(documents: Documents, expected: bool) -> None:
    assert (documents.directory is not None) == expected


@pytest.mark.parametrize("source", ["File", "Channel"])
def test_what_a_newer_version_says_beyond_this_one_is_told_by_name_wherever_it_came_from(source: Source) -> None:
    documents = offered(written("newer", "config"), source, Documents())
    documents = offer_identity(documents, written("newer", "identity"), source)
    assert (documents.rejected, documents.in_force().generation, documents.source) == (None, 7, source)
    assert documents.in_force().unknown_fields == (*NEW_IN_CONFIG, *NEW_IN_IDENTITY)
    assert offered(config(generation=8), documents=documents).in_force().unknown_fields == NEW_IN_IDENTITY


def test_what_is_in_force_is_said_by_digest() -> None:
    known = identity()
    assert Documents().in_force() == InForce()
    assert Documents(OLD, known, "File").in_force() == InForce(
        generation=5, config_digest=OLD.digest, identity_digest=known.digest, source="File"
    )


def head(*headers: bytes) -> Head:
    found = read_head(b"\r\n".join([b"GET / HTTP/1.1", b"Host: a", *headers, b""]))
    assert isinstance(found, Head)
    return found


TOKENS = {
    "the token": ([b"Authorization: Bearer sesame"], True),
    "in another case of the scheme": ([b"authorization: BEARER sesame"], True),
    "another": ([b"Authorization: Bearer sesam"], False),
    "nothing": ([], False),
    "an empty one": ([b"Authorization: Bearer "], False),
    "another scheme": ([b"Authorization: Basic sesame"], False),
    "twice": ([b"Authorization: Bearer sesame"] * 2, False),
    "bytes that are no ASCII": ([b"Authorization: Bearer \xff"], False),
}


@pytest.mark.parametrize(("headers", "expected"), TOKENS.values(), ids=TOKENS)
def test_the_token_opens(headers: list[bytes], expected: bool) -> None:
    token = Token()
    token.take(b"sesame\n")
    assert token.is_in(head(*headers)) == expected
    assert not Token().is_in(head(*headers))


NEAR = {
    "loopback": (Ends("127.0.0.1", "127.0.0.1"), True),
    "all of loopback": (Ends("127.9.9.9", "10.0.0.1"), True),
    "loopback of IPv6": (Ends("::1", "::1"), True),
    "loopback mapped into IPv6": (Ends("::ffff:127.0.0.1", "::ffff:127.0.0.1"), True),
    "the pod itself": (Ends("10.0.0.7", "10.0.0.7"), True),
    "the pod itself mapped into IPv6": (Ends("::ffff:10.0.0.7", "10.0.0.7"), True),
    "a link-local address of a zone": (Ends("fe80::1%eth0", "fe80::1%eth0"), True),
    "the node": (Ends("10.0.0.1", "10.0.0.7"), True),
    "a unix socket": (Ends("", ""), True),
    "another pod": (Ends("10.0.0.8", "10.0.0.7"), False),
    "the internet": (Ends("203.0.113.5", "10.0.0.7"), False),
    "nonsense": (Ends("nonsense", "nonsense"), False),
}


@pytest.mark.parametrize(("ends", "expected"), NEAR.values(), ids=NEAR)
def test_only_the_pod_and_its_node_are_near(ends: Ends, expected: bool) -> None:
    assert is_near(ends, ("10.0.0.1", "fd00::1")) == expected
