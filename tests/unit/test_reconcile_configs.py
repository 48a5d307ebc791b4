"""What every pod is to enforce, and the generation of it."""

import json
from dataclasses import replace

import msgspec
import pytest

import reconcile_builders as make
from contract_versions import signed
from kvquota_api.pod_config import PoolRef, decode_config, encode, sealed, unknown_fields
from kvquota_api.usage import InForce


def stored(**fields):
    """The example after its first plan was carried out."""
    before = make.observed(**fields)
    return make.carried_out(before, make.reconcile(before, make.NOW, make.WALL))


def again(observed, **fields):
    (config,) = make.reconcile(replace(observed, **fields), make.NOW, make.LATER).configs
    return config


def durable(observed, **fields):
    """The durable copy of the example's pod, with fields changed."""
    (config,) = observed.configs.values()
    return {config.pod.uid: msgspec.structs.replace(config, **fields)}


def copied(observed, generation, digest):
    """The durable copy of a config that is the wanted one or not, as `digest` says."""
    model = "llama-3.1-8b-instruct" if digest == WANTED else "another"
    ((uid, config),) = durable(observed, generation=generation, model=model).items()
    return {uid: sealed(config)}


def says(generation, digest):
    in_force = InForce(generation=generation, config_digest=digest, source="Channel")
    return make.reported(make.report(in_force=in_force))


WANTED = make.decided().configs[0].digest
OTHER = "0" * 64


@pytest.mark.parametrize(
    ("copy", "in_force", "generation"),
    [
        pytest.param(None, (0, ""), 1, id="the first one of a new pod"),
        pytest.param((4, WANTED), (0, ""), 4, id="the copy means the same, the pod has none yet"),
        pytest.param((4, WANTED), (3, OTHER), 4, id="the copy means the same, the pod is behind"),
        pytest.param((4, WANTED), (4, WANTED), 4, id="copy and pod mean the same"),
        pytest.param((4, OTHER), (4, OTHER), 5, id="something else is wanted"),
        pytest.param((4, WANTED), (4, OTHER), 5, id="the pod has another content under the same number"),
        pytest.param((4, WANTED), (9, OTHER), 10, id="the copy was put back behind what the pod has"),
        pytest.param((4, WANTED), (9, WANTED), 9, id="the copy was put back, the pod already has the content"),
        pytest.param((4, OTHER), (9, WANTED), 9, id="the copy is old, the pod already has the content"),
        pytest.param((9, OTHER), (4, WANTED), 10, id="the pod has the content under an older number than the copy"),
        pytest.param(None, (9, WANTED), 9, id="the copy is gone, the pod has the content"),
        pytest.param(None, (9, OTHER), 10, id="the copy is gone, the pod has something else"),
        pytest.param((4, OTHER), (0, ""), 5, id="something else is wanted and the pod has none"),
    ],
)
def test_the_generation(copy, in_force, generation):
    before = stored()
    configs = {} if copy is None else copied(before, *copy)
    config = again(before, configs=configs, reports=says(*in_force))
    assert config.generation == generation
    assert sealed(msgspec.structs.replace(config, earlier=())).digest == WANTED


def test_a_pod_without_report_has_the_generation_of_its_copy():
    before = stored()
    config = again(before, configs=durable(before, generation=7), reports=make.reported(None, error="timeout"))
    assert config.generation == 7


def test_a_smaller_engine_makes_smaller_shares():
    before = stored()
    config = again(before, reports=make.reported(make.report(blocks=9_001)))
    assert (make.softs(config)["search"], make.hards(config)["search"], config.generation) == (3_600, 5_400, 2)


def test_an_engine_that_says_nothing_is_taken_as_planned():
    before = stored()
    assert again(before, reports=make.reported(make.report(blocks=None))).generation == 1


def test_a_silent_pod_keeps_the_size_that_it_reported_last():
    before = stored(reports=make.reported(make.report(blocks=9_001)))
    config = again(before, reports=make.reported(make.report(blocks=9_001), age=900.0))
    assert (config.generation, make.softs(config)["search"]) == (1, 3_600)


def test_a_pod_that_is_awaited_keeps_its_copy_and_statuses_stay_as_stored():
    before = stored(reports=make.reported(make.report(blocks=9_001)))
    edited = make.seen(make.quota("search", kv={"hard": {"percent": 1}}))
    plan = make.reconcile(replace(before, reports={}, quotas=edited), make.NOW, make.LATER)
    assert plan.configs == tuple(before.configs.values())
    assert (plan.pool_status, plan.quota_statuses, plan.events) == (before.pool_status, {"search": {}}, ())


def test_a_pod_that_is_awaited_does_not_keep_the_copy_of_another_pool():
    before = stored()
    (config,) = durable(before, pool=PoolRef(namespace="inference", name="other"), generation=5).values()
    config = again(before, configs={config.pod.uid: sealed(config)}, reports={})
    assert (config.pool.name, config.generation) == ("llama-8b", 6)


def of_a_newer_operator(observed, generation=4):
    """The durable copy of the example's pod, in which a newer operator has said more."""
    ((uid, config),) = durable(observed, generation=generation).items()
    return {uid: decode_config(signed({**json.loads(encode(config)), "requestsPerMinute": 600}))}


def test_a_copy_that_a_newer_operator_wrote_is_followed_by_an_own_one_of_a_newer_generation():
    before = stored()
    copies = of_a_newer_operator(before)
    (copy,) = copies.values()
    config = again(before, configs=copies, reports=make.reported(make.report(in_force=make.in_force(copy))))
    assert (config.generation, unknown_fields(copy)) == (5, ("config.requestsPerMinute",))
    assert config == decode_config(encode(config))
    assert sealed(msgspec.structs.replace(config, earlier=())).digest == WANTED


def test_a_copy_that_a_newer_operator_wrote_stays_as_it_was_written_while_its_pod_is_awaited():
    before = stored()
    copies = of_a_newer_operator(before)
    assert again(before, configs=copies, reports={}) is copies["uid-llama-8b-0"]


def test_what_is_known_of_a_copy_that_a_newer_operator_wrote_is_the_last_valid_plan():
    before = stored()
    copies = of_a_newer_operator(before)
    config = again(before, configs=copies, pool=make.unread_pool(), reports=make.reported(make.report()))
    assert (config.kv, config.generation) == (copies["uid-llama-8b-0"].kv, 5)
    assert config == decode_config(encode(config))


@pytest.mark.parametrize(
    ("tenant", "named"),
    [
        pytest.param("search", "inference/search", id="a tenant with a quota"),
        pytest.param("nobody", "", id="a tenant without a quota: the config would be refused"),
        pytest.param("", "", id="none"),
    ],
)
def test_the_anonymous_tenant(tenant, named):
    (config,) = make.decided(pool=make.pool(sidecar__anonymousTenant=tenant)).configs
    assert config.anonymous_tenant == named


def test_what_the_pool_says_reaches_the_config():
    changes = {
        "enforcement": "Shadow",
        "sidecar__authorization": "Remove",
        "sidecar__identity": {"apiKeyHeader": "x-api-key"},
        "degradation": {"guaranteeReservePercent": 5, "evictionWaitSeconds": 3, "minDwellSeconds": 4},
    }
    (config,) = make.decided(pool=make.pool(**changes)).configs
    ladder = config.ladder
    assert (config.enforcement, config.authorization, config.api_key_header) == ("Shadow", "Remove", "x-api-key")
    assert (ladder.guarantee_reserve_percent, ladder.eviction_wait_seconds, ladder.min_dwell_seconds) == (5, 3.0, 4.0)


def test_configs_only_for_pods_that_count():
    pods = (make.pod("a"), make.pod("b", governed=False), make.pod("c", deleting=True))
    assert [config.pod.name for config in make.decided(pods=pods).configs] == ["a"]


TWO_PODS = {"pods": (make.pod("llama-8b-0"), make.pod("llama-8b-1")), "reports": {}}
SIZE = len(encode(make.decided().configs[0]))


def test_a_config_that_just_fits_is_stored():
    plan = make.decided(max_config_bytes=SIZE)
    assert plan.configs == make.decided().configs
    assert make.condition(plan.pool_status, "PodsGoverned")[:2] == ("True", "AllGoverned")


def test_a_first_config_that_is_too_large_is_told_and_given_to_nobody():
    plan = make.decided(max_config_bytes=SIZE - 1)
    assert plan.configs == ()
    assert make.condition(plan.pool_status, "PodsGoverned") == (
        "False",
        "ConfigTooLarge",
        f"the config of a pod takes {-(-SIZE // 1024)} KiB, and a ConfigMap holds {(SIZE - 1) // 1024} KiB (llama-8b-0:"
        " none is in force yet). Remove TenantQuotas of this pool, or give some of them a ModelPool with pods of its"
        " own",
    )


def beside_ready(plan):
    """The statuses of quotas, without the condition of those that are not in force."""
    statuses = plan.quota_statuses.values()
    return [
        status | {"conditions": [each for each in status["conditions"] if each["type"] != "Ready"]}
        for status in statuses
    ]


def test_a_pod_keeps_the_last_config_that_fitted_and_nothing_else_is_held_back():
    before = stored(quotas=make.seen(make.quota("search")))
    wanted = replace(before, pods=TWO_PODS["pods"], quotas=make.example_quotas())
    free = make.reconcile(wanted, make.NOW, make.WALL)
    size = min(len(encode(config)) for config in free.configs)
    plan = make.reconcile(replace(wanted, max_config_bytes=size - 1), make.NOW, make.WALL)
    assert plan.configs == tuple(before.configs.values())
    assert (plan.secret, beside_ready(plan)) == (free.secret, beside_ready(free))
    message = make.condition(plan.pool_status, "PodsGoverned")[2]
    assert "(llama-8b-0: the last one that fitted stays in force; llama-8b-1: none is in force yet)" in message


def test_what_was_stored_once_is_not_measured_again():
    before = stored()
    assert again(before, max_config_bytes=1) == next(iter(before.configs.values()))


def test_a_copy_of_another_pool_does_not_stay():
    ours = stored(quotas=make.seen(make.quota("search")))
    other = {uid: msgspec.structs.replace(each, pool=PoolRef(namespace="inference", name="other"))
             for uid, each in ours.configs.items()}  # fmt: skip
    before = replace(ours, configs=other, max_config_bytes=10)
    assert make.reconcile(before, make.NOW, make.WALL).configs == ()
