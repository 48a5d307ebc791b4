"""The documents from the operator to one sidecar: read whole or refused whole."""

import hashlib
import hmac
import json
from typing import Any

import msgspec
import pytest

from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import (
    DocumentError,
    JwtIssuer,
    KvPlan,
    Ladder,
    MediaCost,
    PodConfig,
    PodRef,
    PoolIdentity,
    PoolRef,
    TenantShare,
    Threshold,
    TrustedPeer,
    content_digest,
    decode_config,
    decode_identity,
    encode,
    key_digest,
    sealed,
)

PEPPER = "p" * 32


def share(**changes: Any) -> TenantShare:
    fields = {"id": "inference/search", "quota": "search", "priority": 100, "soft_blocks": 7372, "hard_blocks": 11058}
    return TenantShare(**{**fields, **changes})


def config(**changes: Any) -> PodConfig:
    fields: dict[str, Any] = {
        "generation": 3,
        "digest": "",
        "pod": PodRef(namespace="inference", name="llama-0", uid="u-1"),
        "pool": PoolRef(namespace="inference", name="llama-8b"),
        "model": "llama-3.1-8b-instruct",
        "engine_type": "vLLM",
        "kv": KvPlan(
            cap_blocks=18432,
            null_blocks=1,
            block_tokens=16,
            bytes_per_block=2097152,
            max_model_len=32768,
            groups=(LayerGroup(kind="Full", block_tokens=16),),
        ),
        "ladder": Ladder(),
        "tenants": (share(),),
    }
    return PodConfig(**{**fields, **changes})


def identity(**changes: Any) -> PoolIdentity:
    fields = {"digest": "", "pepper": PEPPER, "api_keys": {key_digest(PEPPER, "kvq-secret"): "inference/search"}}
    return PoolIdentity(**{**fields, **changes})


def edited(document: PodConfig | PoolIdentity, **changes: Any) -> bytes:
    """The JSON of a sealed document with top-level fields changed afterwards; None takes one out."""
    raw = {**json.loads(encode(sealed(document))), **changes}
    return json.dumps({key: value for key, value in raw.items() if value is not None}).encode()


def test_a_config_is_read_as_it_was_written() -> None:
    written = sealed(config(anonymous_tenant="inference/search", enforcement="Shadow", authorization="Remove"))

    assert decode_config(encode(written)) == written


def test_an_identity_is_read_as_it_was_written() -> None:
    written = sealed(identity())

    assert decode_identity(encode(written)) == written


def test_the_text_of_a_config_is_read_too() -> None:
    written = sealed(config())

    assert decode_config(encode(written).decode()) == written


def test_the_generation_alone_does_not_change_the_digest() -> None:
    assert content_digest(config(generation=3)) == content_digest(config(generation=4))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"tenants": ()}, id="tenants"),
        pytest.param({"model": "other"}, id="the model"),
        pytest.param({"pod": PodRef(namespace="inference", name="llama-1", uid="u-1")}, id="the pod"),
        pytest.param({"ladder": Ladder(min_dwell_seconds=11)}, id="the ladder"),
        pytest.param({"enforcement": "Shadow"}, id="enforcement"),
    ],
)
def test_any_other_change_changes_the_digest(changes: dict[str, Any]) -> None:
    assert content_digest(config(**changes)) != content_digest(config())


def test_a_whole_number_of_seconds_has_one_digest_before_and_after_reading() -> None:
    written = sealed(config(ladder=Ladder(eviction_wait_seconds=2, min_dwell_seconds=10)))

    assert decode_config(encode(written)) == written


def test_a_key_is_stored_as_its_hmac() -> None:
    expected = hmac.new(PEPPER.encode(), b"kvq-secret", hashlib.sha256).hexdigest()

    assert key_digest(PEPPER, "kvq-secret") == expected


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(b"", "not a valid PodConfig: Input data was truncated", id="nothing"),
        pytest.param(b'{"version": 1', "not a valid PodConfig: Input data was truncated", id="half a document"),
        pytest.param(b"\xff\xfe", "not a valid PodConfig", id="no text"),
        pytest.param(b"[]", "not a valid PodConfig: Expected `object`, got `array`", id="a list"),
        pytest.param(edited(config(), invented=1), "digest: does not match the content", id="a field added by hand"),
        pytest.param(edited(config(), version=2), r"Invalid enum value 2 - at `\$.version`", id="a later version"),
        pytest.param(edited(config(), kv=None), "missing required field `kv`", id="no plan"),
        pytest.param(edited(config(), generation=0), r"at `\$.generation`", id="no generation"),
        pytest.param(edited(config(), model=""), r"at `\$.model`", id="an empty name"),
        pytest.param(edited(config(), model="other"), "digest: does not match the content", id="an edited document"),
    ],
)
def test_refuses_a_config_whole_and_names_the_field(data: bytes, says: str) -> None:
    with pytest.raises(DocumentError, match=says):
        decode_config(data)


def plan(**changes: Any) -> KvPlan:
    return msgspec.structs.replace(config().kv, **changes)


def issuer(**changes: Any) -> JwtIssuer:
    fields = {
        "issuer": "https://id.example",
        "audience": "llm",
        "tenant_claim": "team",
        "namespace": "inference",
        "keys": '{"keys": []}',
    }
    return JwtIssuer(**{**fields, **changes})


def peer(**changes: Any) -> TrustedPeer:
    fields = {"name": "x-team", "secret": "a" * 64, "tenants": {"search": "inference/search"}}
    return TrustedPeer(**{**fields, **changes})


def test_what_a_plan_a_prompt_and_a_cache_may_cost_is_read_as_it_was_written() -> None:
    written = sealed(
        config(
            kv=plan(ranks=8, batch_tokens=8192, shares_prefixes=True),
            media=MediaCost(image_tokens=2880, audio_tokens=1500),
            cache_isolation="Shared",
        )
    )

    assert decode_config(encode(written)) == written


def test_an_issuer_and_a_peer_are_read_as_they_were_written() -> None:
    written = sealed(identity(jwt=issuer(), trusted_peer=peer()))

    assert decode_identity(encode(written)) == written


BEYOND: dict[str, tuple[PodConfig | PoolIdentity, str]] = {
    "no rank": (config(kv=plan(ranks=0)), r"\$.kv.ranks"),
    "more ranks than any pod has": (config(kv=plan(ranks=1025)), r"\$.kv.ranks"),
    "a step of no tokens": (config(kv=plan(batch_tokens=0)), r"\$.kv.batchTokens"),
    "an image for nothing": (config(media=MediaCost(image_tokens=0)), r"\$.media.imageTokens"),
    "sound for nothing": (config(media=MediaCost(audio_tokens=0)), r"\$.media.audioTokens"),
    "a film for less than nothing": (config(media=MediaCost(video_tokens=-1)), r"\$.media.videoTokens"),
    "an isolation that is none": (config(cache_isolation="None"), r"\$.cacheIsolation"),
    "an issuer without a name": (identity(jwt=issuer(issuer="")), r"\$.jwt.issuer"),
    "an issuer of a longer name than there is": (identity(jwt=issuer(issuer="i" * 2049)), r"\$.jwt.issuer"),
    "no audience": (identity(jwt=issuer(audience="")), r"\$.jwt.audience"),
    "no claim": (identity(jwt=issuer(tenant_claim="")), r"\$.jwt.tenantClaim"),
    "no namespace": (identity(jwt=issuer(namespace="")), r"\$.jwt.namespace"),
    "more keys than anybody has": (identity(jwt=issuer(keys="k" * 262_145)), r"\$.jwt.keys"),
    "a peer without a header": (identity(trusted_peer=peer(name="")), r"\$.trustedPeer.name"),
    "a peer's secret in clear": (identity(trusted_peer=peer(secret="secret")), r"\$.trustedPeer.secret"),
    "a peer's tenant without a name": (identity(trusted_peer=peer(tenants={"a": ""})), r"\$.trustedPeer.tenants"),
}


@pytest.mark.parametrize(("document", "field"), BEYOND.values(), ids=BEYOND)
def test_a_value_beyond_its_bounds_is_refused_by_the_name_of_its_field(
    document: PodConfig | PoolIdentity, field: str
) -> None:
    decode = decode_config if isinstance(document, PodConfig) else decode_identity

    with pytest.raises(DocumentError, match=field):
        decode(encode(document))


@pytest.mark.parametrize(
    ("document", "says"),
    [
        pytest.param(
            config(tenants=(share(), share(id="inference/batch"), share(), share(id="inference/batch"))),
            "tenants: inference/batch, inference/search named twice",
            id="a tenant twice",
        ),
        pytest.param(
            config(kv=plan(cap_blocks=1)), "kv.capBlocks: 1 leaves no block to hand out", id="a pool of the null block"
        ),
        pytest.param(
            config(anonymous_tenant="inference/guest"),
            "anonymousTenant: inference/guest is none of the tenants",
            id="an anonymous tenant without a share",
        ),
        pytest.param(
            config(ladder=Ladder(shed=Threshold(enter_percent=80, exit_percent=80))),
            "ladder.shed.exitPercent: 80 is not below enterPercent",
            id="a rung without hysteresis",
        ),
        pytest.param(
            config(ladder=Ladder(evict=Threshold(enter_percent=80, exit_percent=90))),
            "ladder.evict.exitPercent: 90 is not below enterPercent",
            id="a rung that ends above where it begins",
        ),
    ],
)
def test_refuses_a_config_whose_parts_contradict_each_other(document: PodConfig, says: str) -> None:
    with pytest.raises(DocumentError, match=f"^{says}$"):
        decode_config(encode(sealed(document)))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(edited(identity(), pepper="short"), r"at `\$.pepper`", id="a pepper that is too short"),
        pytest.param(
            edited(identity(), apiKeys={"kvq-secret": "a/b"}), r"at `key` in `\$.apiKeys`", id="a key in clear"
        ),
        pytest.param(edited(identity(), apiKeys={}), "digest: does not match the content", id="an edited document"),
    ],
)
def test_refuses_an_identity_whole_and_names_the_field(data: bytes, says: str) -> None:
    with pytest.raises(DocumentError, match=says):
        decode_identity(data)


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(config(generation=0), id="a config"),
        pytest.param(config(tenants=(share(priority=1001),)), id="a share"),
        pytest.param(identity(pepper="short"), id="an identity"),
    ],
)
def test_what_a_reader_would_refuse_is_not_sealed(document: PodConfig | PoolIdentity) -> None:
    with pytest.raises(DocumentError, match="not a valid Po"):
        sealed(document)


def test_an_identity_does_not_show_its_secrets() -> None:
    shown = repr(sealed(PoolIdentity(digest="", pepper="ab" * 32, api_keys={"0" * 64: "shop/a"})))
    assert "ab" * 32 not in shown
    assert "0" * 64 not in shown
