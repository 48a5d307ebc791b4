"""Documents and reports of other versions: what is taken of them, what is named, what refuses them."""

import json
from typing import Any

import msgspec
import pytest

from contract_versions import NEW_IN_CONFIG, NEW_IN_IDENTITY, raw, signed, written
from kvquota_api import usage
from kvquota_api.pod_config import (
    FOR_THE_OPERATOR,
    LONGEST_FIELD,
    MAX_UNKNOWN,
    ConfigOfAnotherVersion,
    DocumentError,
    EarlierShare,
    IdentityOfAnotherVersion,
    PodConfig,
    content_digest,
    decode_config,
    decode_identity,
    encode,
    key_digest,
    known_part,
    sealed,
    unknown_fields,
)

RELEASED = ("0.1.0",)


# What was released.


@pytest.mark.parametrize("version", RELEASED)
def test_what_a_release_has_written_is_read_whole_and_written_again_with_the_same_digest(version: str) -> None:
    config, identity = decode_config(written(version, "config")), decode_identity(written(version, "identity"))

    assert (unknown_fields(config), unknown_fields(identity)) == ((), ())
    for document, name in ((config, "config"), (identity, "identity")):
        assert json.loads(encode(document)) == raw(version, name)
        assert content_digest(document) == document.digest


@pytest.mark.parametrize("version", RELEASED)
def test_the_report_of_a_release_is_read_with_every_number(version: str) -> None:
    report = usage.decode_report(written(version, "report"))

    assert {**raw(version, "report"), "inForce": None} == {**json.loads(usage.encode(report)), "inForce": None}
    assert (report.in_force.generation, report.in_force.unknown_fields) == (7, ())


# A writer that knew less.


def test_a_config_without_the_fields_that_have_a_default_means_the_defaults() -> None:
    config = decode_config(written("older", "config"))

    assert isinstance(config, ConfigOfAnotherVersion)
    assert unknown_fields(config) == ()
    newest = decode_config(written("0.1.0", "config"))
    assert [(each.id, each.soft_blocks, each.enforcement) for each in config.tenants] == [
        (each.id, each.soft_blocks, "Enforce") for each in newest.tenants
    ]
    assert (config.plan, config.earlier, config.media.image_tokens, config.ladder) == ("", (), None, newest.ladder)


def test_a_report_without_the_fields_that_have_a_default_is_read() -> None:
    report = usage.decode_report(written("older", "report"))

    assert (report.in_force.generation, report.engine.blocks, report.tenants[0].in_flight) == (7, None, 2)


# A writer that knew more.


def test_a_config_of_a_later_version_is_taken_but_for_what_is_new_which_is_named() -> None:
    later = decode_config(written("newer", "config"))

    now = decode_config(written("0.1.0", "config"))
    assert known_part(later) == msgspec.structs.replace(now, digest=later.digest)
    assert unknown_fields(later) == NEW_IN_CONFIG


def test_an_identity_of_a_later_version_is_taken_but_for_what_is_new_which_is_named() -> None:
    later = decode_identity(written("newer", "identity"))

    now = decode_identity(written("0.1.0", "identity"))
    assert (later.api_keys, later.jwt, later.trusted_peer) == (now.api_keys, now.jwt, now.trusted_peer)
    assert unknown_fields(later) == NEW_IN_IDENTITY


def test_the_report_of_a_later_version_is_taken_but_for_what_is_new() -> None:
    later, now = (usage.decode_report(written(version, "report")) for version in ("newer", "0.1.0"))

    assert later == now


@pytest.mark.parametrize("version", ["older", "newer"])
def test_what_another_version_wrote_is_handed_on_as_it_was_written(version: str) -> None:
    config, identity = written(version, "config"), written(version, "identity")

    assert encode(decode_config(config)) == encode(decode_config(config.decode())) == config
    assert encode(decode_identity(identity)) == identity


def test_what_another_version_wrote_is_none_of_what_this_one_writes() -> None:
    later = decode_config(written("newer", "config"))

    ours = sealed(known_part(later))
    assert (later != ours, ours.digest == later.digest) == (True, False)
    assert decode_config(encode(ours)) == ours


def test_the_known_part_of_an_own_config_is_that_config() -> None:
    config = decode_config(written("0.1.0", "config"))

    assert known_part(config) is config


def test_an_identity_of_another_version_does_not_show_its_pepper() -> None:
    later = decode_identity(written("newer", "identity"))

    assert isinstance(later, IdentityOfAnotherVersion)
    assert later.pepper not in repr(later)


class NextConfig(PodConfig, frozen=True, kw_only=True):
    """A config of the next release, with a field as a release adds one."""

    burst_blocks: int | msgspec.UnsetType = msgspec.UNSET


def as_the_next_release_writes_it(**changes: Any) -> NextConfig:
    now = decode_config(written("0.1.0", "config"))
    fields = {name: getattr(now, name) for name in PodConfig.__struct_fields__}
    return sealed(NextConfig(**{**fields, **changes}))


def test_a_field_that_a_release_adds_changes_no_config_that_does_not_use_it() -> None:
    later = as_the_next_release_writes_it()

    assert json.loads(encode(later)) == raw("0.1.0", "config")


def test_a_field_that_a_release_adds_is_named_by_this_one_where_it_is_used() -> None:
    assert unknown_fields(decode_config(encode(as_the_next_release_writes_it(burst_blocks=7)))) == (
        "config.burstBlocks",
    )


def test_a_field_in_every_tenant_is_named_once_and_many_fields_are_bounded() -> None:
    config = raw("0.1.0", "config")
    many = {f"field{number:02d}": number for number in range(40)}

    assert unknown_fields(decode_config(signed({**config, **many}))) == tuple(
        f"config.field{number:02d}" for number in range(MAX_UNKNOWN)
    )
    [name] = unknown_fields(decode_config(signed({**config, "x" * 1000: 1})))
    assert len(name) == LONGEST_FIELD


def test_what_the_operator_notes_for_itself_is_in_a_config() -> None:
    noted = {field.removeprefix("config.") for field in FOR_THE_OPERATOR}

    assert noted <= set(PodConfig.__struct_encode_fields__)


# What refuses a document, whoever wrote it.


def changed(name: str, *path: str | int, to: Any) -> bytes:
    document = raw("0.1.0", name)
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return signed(document) if name != "report" else json.dumps(document).encode()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(changed("config", "version", to=2), r"Invalid enum value 2 - at `\$.version`", id="a version"),
        pytest.param(
            changed("config", "enforcement", to="Warn"), r"Invalid enum value 'Warn' - at `\$.enforcement`", id="a word"
        ),
        pytest.param(
            changed("config", "kv", "groups", 0, "kind", to="Ring"),
            r"Invalid enum value 'Ring' - at `\$.kv.groups\[0\].kind`",
            id="a kind of layers",
        ),
    ],
)
def test_a_word_or_a_version_that_is_not_known_refuses_a_config_whole(data: bytes, says: str) -> None:
    with pytest.raises(DocumentError, match=says):
        decode_config(data)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(changed("report", "version", to=2), r"\$.version", id="a version"),
        pytest.param(changed("report", "pool", "rung", to="Freeze"), r"\$.pool.rung", id="a rung"),
    ],
)
def test_a_word_or_a_version_that_is_not_known_refuses_a_report_whole(data: bytes, says: str) -> None:
    with pytest.raises(DocumentError, match=says):
        usage.decode_report(data)


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({**raw("newer", "config"), "burst": None}, id="what is not known was edited"),
        pytest.param({**raw("0.1.0", "config"), "requestsPerMinute": 600}, id="something was added by hand"),
        pytest.param(
            {name: value for name, value in raw("newer", "config").items() if name != "burst"}, id="it was taken out"
        ),
    ],
)
def test_the_digest_is_of_all_that_was_written_also_of_what_is_not_known(document: dict[str, Any]) -> None:
    with pytest.raises(DocumentError, match="digest: does not match the content"):
        decode_config(json.dumps(document))


def test_a_whole_number_of_seconds_is_read_as_its_writer_meant_it() -> None:
    config = raw("0.1.0", "config")
    config["ladder"]["evictionWaitSeconds"] = 2

    assert decode_config(json.dumps(config)) == decode_config(written("0.1.0", "config"))


def test_the_goldens_hold_what_they_are_to_show() -> None:
    config, identity = decode_config(written("0.1.0", "config")), decode_identity(written("0.1.0", "identity"))

    assert config.earlier == (EarlierShare(id="inference/batch", hard_blocks=5000, max_concurrent_requests=8),)
    assert key_digest(identity.pepper, "kvq-search") in identity.api_keys
