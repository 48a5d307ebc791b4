"""Which plan is in force: the pool's own, the last valid one, or what the engines report."""

from dataclasses import replace

import msgspec
import pytest

import reconcile_builders as make
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import EarlierShare, KvPlan, MediaCost, PoolRef, sealed
from kvquota_api.usage import MAX_BLOCKS
from kvquota_operator.reconcile.measured import measured_plan

TOO_LARGE = {"memory__kvPool": {"percent": 95}}
UNKNOWN = {"model__config": {"inline": {"architectures": ["NobodyKnowsThis"], "model_type": "nobody-knows"}}}


def stored(**fields):
    before = make.observed(**fields)
    return make.carried_out(before, make.reconcile(before, make.NOW, make.WALL))


def plan_valid(plan):
    return make.condition(plan.pool_status, "PlanValid")


def test_an_invalid_plan_leaves_the_last_valid_one_in_force():
    before = stored()
    plan = make.reconcile(replace(before, pool=make.pool(**TOO_LARGE)), make.NOW, make.LATER)
    status, reason, message = plan_valid(plan)
    assert plan.configs == tuple(before.configs.values())
    assert (status, reason) == ("False", "PartitionTooLarge")
    assert message.endswith(". The last valid plan stays in force: 18,432 blocks (294,912 tokens, 36 GiB on one GPU)")
    assert not {"memory", "capacity"} & set(plan.pool_status)
    assert plan.pool_status["planHash"] == make.plan_hash(make.pool())
    assert plan.pool_status["kv"]["cap"] == {"blocks": 18_432, "tokens": 294_912}


def test_the_last_valid_plan_is_for_new_pods_too():
    pods = (make.pod("llama-8b-0"), make.pod("llama-8b-1"))
    plan = make.reconcile(replace(stored(), pool=make.pool(**TOO_LARGE), pods=pods), make.NOW, make.LATER)
    assert [config.kv.cap_blocks for config in plan.configs] == [18_432, 18_432]


def test_the_last_valid_plan_is_that_of_the_newest_copy():
    pods = (make.pod("a"), make.pod("b"))
    reports = make.reported(make.report(), name="a") | make.reported(make.report(), name="b")
    before = stored(pods=pods, reports=reports)
    newest = msgspec.structs.replace(
        before.configs["uid-b"],
        generation=8,
        kv=msgspec.structs.replace(before.configs["uid-b"].kv, cap_blocks=12_000),
    )
    mixed = replace(before, configs=before.configs | {"uid-b": newest}, pool=make.pool(**TOO_LARGE))
    plan = make.reconcile(mixed, make.NOW, make.LATER)
    assert [config.kv.cap_blocks for config in plan.configs] == [12_000, 12_000]


def test_the_last_valid_plan_is_never_that_of_another_pool():
    before = stored()
    ours = before.configs["uid-llama-8b-0"]
    foreign = msgspec.structs.replace(
        ours,
        generation=99,
        pool=PoolRef(namespace="inference", name="other"),
        kv=msgspec.structs.replace(ours.kv, cap_blocks=12_000),
    )
    mixed = replace(before, configs=before.configs | {"uid-other": foreign}, pool=make.pool(**TOO_LARGE))
    plan = make.reconcile(mixed, make.NOW, make.LATER)
    assert [config.kv.cap_blocks for config in plan.configs] == [18_432]


def test_quotas_go_on_to_be_edited_while_the_plan_is_invalid():
    edited = make.seen(make.quota("search", kv={"hard": {"percent": 10}}))
    plan = make.reconcile(replace(stored(), pool=make.pool(**TOO_LARGE), quotas=edited), make.NOW, make.LATER)
    assert make.hards(plan.configs[0]) == {"search": 1_843}


def test_where_no_plan_was_ever_valid_no_pod_gets_a_config():
    plan = make.decided(pool=make.pool(**TOO_LARGE))
    assert (plan.configs, plan.pool_status["state"]) == ((), "NotReady")
    assert plan_valid(plan)[2].endswith(". No plan was ever valid: pods get no config until this is corrected")
    assert make.condition(plan.pool_status, "PartitionApplied")[:2] == ("Unknown", "NoPlan")
    assert make.condition(plan.quota_statuses["search"], "Ready") == (
        "False",
        "NoPlan",
        "ModelPool llama-8b has no valid plan yet: correct it as its condition PlanValid says; this quota takes effect"
        " with the first one",
    )
    assert set(plan.quota_statuses["search"]) == {"observedGeneration", "conditions", "state"}


def test_a_pool_that_does_not_parse_changes_nothing_at_all():
    before = stored(pool=make.pool(sidecar__anonymousTenant="search", enforcement="Shadow"))
    plan = make.reconcile(replace(before, pool=make.unread_pool()), make.NOW, make.LATER)
    assert plan.configs == tuple(before.configs.values())
    assert plan_valid(plan) == (
        "False",
        "InvalidSpec",
        "spec.gpu.memory: is required: add it. The last valid plan stays in force: 18,432 blocks (294,912 tokens, 36"
        " GiB on one GPU)",
    )
    assert plan.pool_status["observedGeneration"] == 4


def test_of_a_pool_that_does_not_parse_no_pod_is_told_what_another_gave_back():
    pods = (make.pod("a"), make.pod("b"))
    quotas = make.seen(make.quota("search", kv={"hard": {"percent": 10}}))
    before = stored(pods=pods, reports={}, quotas=quotas)
    given_back = (EarlierShare(id="inference/search", hard_blocks=9_000),)
    newest = msgspec.structs.replace(before.configs["uid-a"], generation=9, earlier=given_back)
    other = before.configs["uid-b"]
    reports = make.reported(make.report(in_force=make.in_force(other)), name="b")
    found = replace(before, pool=make.unread_pool(), configs={"uid-a": sealed(newest)}, reports=reports)
    assert make.reconcile(found, make.NOW, make.LATER).configs[1] == other


def test_a_pool_that_never_parsed_configures_nothing():
    plan = make.decided(pool=make.unread_pool())
    assert (plan.configs, plan_valid(plan)[2]) == (
        (),
        "spec.gpu.memory: is required: add it. No plan was ever valid: pods get no config until this is corrected",
    )


def test_a_config_map_gives_the_model():
    changes = {"model__config": {"configMapRef": {"name": "llama", "key": "config.json"}}}
    before = make.decided(pool=make.pool(**changes))
    assert plan_valid(before)[:2] == ("False", "ModelConfigInvalid")
    architecture = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    found = make.decided(pool=make.pool(**changes), model_config=architecture)
    assert found.configs[0].kv.cap_blocks == 18_432


def test_an_unknown_model_is_planned_by_what_its_engines_report():
    plan = make.decided(pool=make.pool(**UNKNOWN), reports=make.reported(make.report(blocks=5_001, block_tokens=32)))
    status, reason, message = plan_valid(plan)
    assert plan.configs[0].kv == KvPlan(
        cap_blocks=5_001,
        null_blocks=1,
        block_tokens=32,
        bytes_per_block=36 * 2**30 // 5_001,
        max_model_len=32_768,
        groups=(LayerGroup(kind="Full", block_tokens=32),),
        batch_tokens=8192,
        shares_prefixes=True,
    )
    assert make.hards(plan.configs[0]) == {"batch": 8 * 2**30 // (36 * 2**30 // 5_001), "search": 3_000}
    assert (status, reason) == ("Unknown", "UnknownArchitecture")
    assert message.endswith(
        ". Quotas hold on what the engines report: 5,001 blocks (160,032 tokens, 36 GiB on one GPU)"
    )
    assert make.condition(plan.pool_status, "PartitionApplied")[:2] == ("Unknown", "NoPlan")


def test_an_unknown_model_that_nobody_measured_has_no_plan():
    plan = make.decided(pool=make.pool(**UNKNOWN), reports=make.reported(None, error="refused"))
    assert (plan.configs, plan_valid(plan)[:2]) == ((), ("False", "UnknownArchitecture"))


@pytest.mark.parametrize(
    ("changes", "bytes_per_block"),
    [
        pytest.param({"memory__kvPool": {"percent": 50}}, 40 * 2**20, id="its part of a percent of the card"),
        pytest.param({"memory__kvPool": {"bytes": "20Gi"}}, 20 * 2**20, id="its part of the bytes"),
        pytest.param({"memory__kvPool": {"tokens": 1000}}, 80 * 2**20, id="its part of the card, not to give too much"),
        pytest.param({"memory__kvPool": {"bytes": 5}}, 1, id="a byte at least"),
    ],
)
def test_the_bytes_of_a_block_that_was_only_measured(changes, bytes_per_block):
    spec = make.pool(**UNKNOWN, **changes).spec
    assert measured_plan(spec, [make.report(blocks=1_024)]).bytes_per_block == bytes_per_block


@pytest.mark.parametrize(
    ("reports", "cap"),
    [
        pytest.param([make.report(blocks=10), make.report(blocks=30), make.report(blocks=20)], 30, id="the largest"),
        pytest.param([make.report(blocks=None), make.report(blocks=30)], 30, id="without those that do not say"),
        pytest.param([make.report(blocks=30, block_tokens=None)], None, id="not without the size of a block"),
        pytest.param([make.report(blocks=1)], None, id="not where the null block is all there is"),
        pytest.param([], None, id="not without a report"),
    ],
)
def test_the_cap_that_was_only_measured(reports, cap):
    plan = measured_plan(make.pool(**UNKNOWN).spec, reports)
    assert (None if plan is None else plan.cap_blocks) == cap


def test_the_longest_request_of_an_unknown_model_is_what_fits_where_nobody_says():
    raw = make.pool(**UNKNOWN).spec
    spec = raw.model_copy(update={"model": raw.model.model_copy(update={"max_model_len": None})})
    assert measured_plan(spec, [make.report(blocks=100)]).max_model_len == 1_600


SPREAD = {
    "gpu__count": 4,
    "engine__parallelism": {"data": 4},
    "engine__maxNumBatchedTokens": 4096,
    "engine__prefixCaching": False,
}


@pytest.mark.parametrize("changes", [{}, UNKNOWN], ids=["a model that is planned", "one that was only measured"])
def test_ranks_batches_and_prefixes_are_what_the_spec_says(changes):
    reports = make.reported(make.report(blocks=18_432))
    (config,) = make.decided(pool=make.pool(**SPREAD, **changes), reports=reports).configs
    assert (config.kv.ranks, config.kv.batch_tokens, config.kv.shares_prefixes) == (4, 4096, False)


def test_the_shares_of_a_pod_are_over_all_of_its_ranks():
    (one,) = make.decided().configs
    (four,) = make.decided(pool=make.pool(**SPREAD)).configs
    percent = {share.quota: share.soft_blocks for share in one.tenants}["search"]
    assert {share.quota: share.soft_blocks for share in four.tenants}["search"] == pytest.approx(4 * percent, abs=4)


def test_costs_of_media_and_the_isolation_of_caches_reach_the_sidecar():
    assert make.decided().configs[0].media == MediaCost()
    changes = {"model__media": {"imageTokens": 576, "videoTokens": 9000}, "cacheIsolation": "Shared"}
    (config,) = make.decided(pool=make.pool(**changes)).configs
    assert config.media == MediaCost(image_tokens=576, video_tokens=9000)
    assert config.cache_isolation == "Shared"


def test_a_cost_of_media_asks_for_no_review_of_the_quotas():
    hashes = {
        make.decided(pool=make.pool(**changes)).pool_status["planHash"]
        for changes in ({}, {"model__media": {"imageTokens": 576}})
    }
    assert len(hashes) == 1


TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 131_072,
    "torch_dtype": "bfloat16",
}


def test_a_card_that_nobody_builds_has_a_plan_whose_sums_can_be_stated():
    """A limit over forty pods of the smallest blocks on the largest cards that the API takes."""
    pool = make.pool(
        gpu={"memory": "8Ei", "count": 1024},
        engine__parallelism={"data": 1024},
        memory__kvPool={"percent": 90},
        model__config={"inline": TINY},
    )
    pods = tuple(make.pod(f"llama-8b-{number}") for number in range(40))
    plan = make.decided(pool=pool, pods=pods, reports={}, quotas=make.seen(make.quota("search", scope="Pool")))
    assert {config.kv.cap_blocks for config in plan.configs} == {MAX_BLOCKS}
    (share,) = plan.configs[0].tenants
    assert share.whole_hard_blocks == 40 * 1024 * (MAX_BLOCKS - 1)
