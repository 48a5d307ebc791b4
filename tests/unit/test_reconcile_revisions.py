"""Pods of one pool with different plans: each keeps that of the revision which it was admitted with."""

from dataclasses import replace

import msgspec
import pytest

import reconcile_builders as make
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import MediaCost

OLD = make.pool()
NEW = make.pool(model__name="llama-fp8", model__kvCacheDtype="fp8", engine__blockSize=32)
NEWER = make.pool(model__name="llama-fp8", model__kvCacheDtype="fp8", model__maxModelLen=16_384)
INVALID = make.pool(model__name="llama-fp8", model__kvCacheDtype="fp8", memory__kvPool={"percent": 95})
UNKNOWN = make.pool(
    model__name="nobody-knows",
    model__config={"inline": {"architectures": ["NobodyKnowsThis"], "model_type": "nobody-knows"}},
)
H_OLD, H_NEW = make.plan_hash(OLD), make.plan_hash(NEW)
CAP_OLD = CAP_NEW = 18_432  # blocks: half the bytes for a token, and twice the tokens in a block
OF_OLD, OF_NEW = ("llama-3.1-8b-instruct", 16), ("llama-fp8", 32)

ON_EACH_POD = make.seen(
    make.quota("search", kv={"soft": {"percent": 40}, "hard": {"percent": 60}}),
    make.quota("batch", kv={"soft": {"tokens": 20_000}, "hard": {"bytes": "8Gi"}}),
)


class Roll:
    """A pool and its pods through its changes, each carried out before the next. Pods have come up as planned."""

    def __init__(self, pool=OLD, quotas=None, **pods):
        self.observed = make.observed(pool=pool, pods=(), reports={}, quotas=quotas or make.example_quotas())
        for name, plan in pods.items():
            self.join(name, plan)
        self.carry_out()

    def join(self, name, plan, *, blocks=make.CAP, block_tokens=16, **pod):
        """A pod whose engine reports so many blocks; None: it does not report."""
        self.observed = replace(
            self.observed, pods=(*self.observed.pods, make.pod(name, plan=plan, **pod)), reports=self.observed.reports
        )
        if blocks is not None:
            self.report(name, blocks=blocks, block_tokens=block_tokens)
        return self

    def report(self, name, *tenants, **engine):
        reports = make.reported(make.report(*tenants, **engine), name=name)
        self.observed = replace(self.observed, reports={**self.observed.reports, **reports})
        return self

    def leave(self, name):
        self.observed = replace(self.observed, pods=tuple(each for each in self.observed.pods if each.name != name))
        return self

    def forget_copies(self, *names):
        kept = {uid: each for uid, each in self.observed.configs.items() if each.pod.name not in names}
        self.observed = replace(self.observed, configs=kept)
        return self

    def becomes(self, pool=None, **fields):
        self.observed = replace(self.observed, pool=pool or self.observed.pool, **fields)
        return self.carry_out()

    def carry_out(self):
        self.plan = make.reconcile(self.observed, make.NOW, make.WALL)
        self.observed = make.carried_out(self.observed, self.plan)
        return self

    @property
    def configs(self):
        return {config.pod.name: config for config in self.plan.configs}

    @property
    def plans(self):
        """By pod, the model and the size of a block."""
        return {name: (config.model, config.kv.block_tokens) for name, config in self.configs.items()}

    def condition(self, kind):
        return make.condition(self.plan.pool_status, kind)

    def quota(self, name, kind):
        return make.condition(self.plan.quota_statuses[name], kind)


def rolling():
    """Half way from one model to the next."""
    return Roll(old=H_OLD).becomes(NEW).join("new", H_NEW, block_tokens=32).carry_out()


def test_a_pod_keeps_the_plan_that_it_was_admitted_with_and_a_new_one_has_the_plan_in_force():
    roll = rolling().becomes(quotas=ON_EACH_POD)
    old, new = roll.configs["old"], roll.configs["new"]
    assert roll.plans == {"old": OF_OLD, "new": OF_NEW}
    assert (old.plan, old.kv.bytes_per_block, new.plan, new.kv.bytes_per_block) == (H_OLD, 2 * 2**20, H_NEW, 2 * 2**20)
    assert (make.softs(old), make.hards(old)) == ({"batch": 1_250, "search": 7_372}, {"batch": 4_096, "search": 11_058})
    assert (make.softs(new), make.hards(new)) == ({"batch": 625, "search": 7_372}, {"batch": 4_096, "search": 11_058})


def test_an_old_pod_is_written_nothing_new_when_the_plan_changes():
    roll = Roll(old=H_OLD)
    before = roll.configs
    assert roll.becomes(NEW).configs == before


def test_it_stays_so_however_often_it_is_decided_and_the_operator_starts():
    roll = rolling()
    before = roll.configs
    assert roll.carry_out().becomes(reports={}).configs == before


def test_what_is_no_part_of_a_plan_holds_on_all_pods_at_once():
    changes = {"degradation__shed": {"enterPercent": 70, "exitPercent": 60}, "enforcement": "Shadow"}
    newer = make.pool(model__name="llama-fp8", model__kvCacheDtype="fp8", engine__blockSize=32, **changes)
    roll = rolling().becomes(newer, quotas=make.seen(make.quota("search", kv={"hard": {"percent": 10}})))
    assert {name: make.hards(each) for name, each in roll.configs.items()} == {
        "old": {"search": 1_843},
        "new": {"search": 1_843},
    }
    assert {(each.ladder.shed.enter_percent, each.enforcement) for each in roll.configs.values()} == {(70, "Shadow")}
    assert roll.plans == {"old": OF_OLD, "new": OF_NEW}


def test_an_old_pod_goes_on_with_the_kind_of_engine_that_it_has():
    sglang = {"engine__type": "SGLang", "engine__version": "0.5.23", "engine__plugin": "Off"}
    roll = Roll(old=H_OLD).becomes(make.pool(model__maxModelLen=16_384, **sglang)).join("new", None).carry_out()
    assert {name: each.engine_type for name, each in roll.configs.items()} == {"old": "vLLM", "new": "SGLang"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, 576, id="the same model: what media cost holds at once"),
        pytest.param({"model__name": "other"}, None, id="another model: what media cost is the other's"),
    ],
)
def test_media_cost_what_the_model_of_the_pod_takes(changes, expected):
    newer = make.pool(model__kvCacheDtype="fp8", model__media={"imageTokens": 576}, **changes)
    assert Roll(old=H_OLD).becomes(newer).configs["old"].media == MediaCost(image_tokens=expected)


def test_a_plan_that_comes_back_is_the_plan_in_force_again():
    roll = rolling().becomes(OLD).join("third", H_OLD).carry_out()
    assert roll.plans == {"old": OF_OLD, "new": OF_NEW, "third": OF_OLD}
    assert roll.condition("PartitionApplied")[2].startswith("pod new has 18,432 blocks (589,824 tokens, 36 GiB on one")


def test_a_change_of_the_name_alone_keeps_the_name_for_later():
    roll = Roll(old=H_OLD).becomes(make.pool(model__revision="2027-01-01"))
    assert (roll.configs["old"].plan, roll.condition("PartitionApplied")[0]) == (H_OLD, "True")
    assert roll.becomes(NEW).plans == {"old": OF_OLD}


LARGER = make.pool(memory__kvPool={"percent": 50})
SMALLER = make.pool(memory__kvPool={"percent": 20})


@pytest.mark.parametrize(
    ("pool", "cap"), [pytest.param(LARGER, 20_480, id="more"), pytest.param(SMALLER, 8_192, id="less")]
)
@pytest.mark.parametrize("plan", [H_OLD, None], ids=["admitted by the webhook", "written by hand"])
def test_the_size_of_the_pool_alone_is_planned_anew_for_running_pods(pool, cap, plan):
    assert Roll(old=plan).becomes(pool).configs["old"].kv.cap_blocks == cap


OTHER_BLOCKS = make.pool(engine__blockSize=32)


@pytest.mark.parametrize("plan", [H_OLD, None], ids=["admitted by the webhook", "written by hand"])
@pytest.mark.parametrize(
    ("engine", "block_tokens"),
    [
        pytest.param({}, 16, id="the engine is as it was started"),
        pytest.param({"blocks": 9_216, "block_tokens": 32}, 32, id="the engine is as the pool says now"),
        pytest.param({"blocks": 9_000}, 16, id="the engine has blocks as it was started with, if not as many"),
        pytest.param({"block_tokens": 8}, 32, id="the engine has blocks as neither says: the pool is believed"),
        pytest.param({"block_tokens": None}, 16, id="the engine does not say the size of a block: their number tells"),
        pytest.param({"blocks": None, "block_tokens": None}, 32, id="the engine does not say"),
    ],
)
def test_what_an_engine_came_up_with_says_by_which_version_of_a_plan_it_was_started(plan, engine, block_tokens):
    roll = Roll(old=plan).report("old", **engine).becomes(OTHER_BLOCKS)
    assert roll.configs["old"].kv.block_tokens == block_tokens


def test_of_two_versions_of_one_plan_each_pod_keeps_its_own():
    roll = Roll(first=H_OLD).becomes(OTHER_BLOCKS).join("second", H_OLD, blocks=9_216, block_tokens=32).carry_out()
    before = roll.configs
    assert [before[name].kv.block_tokens for name in ("first", "second")] == [16, 32]
    assert roll.becomes(NEWER).configs == before


def test_what_no_engine_shows_is_as_the_pool_says_now():
    roll = Roll(old=H_OLD).becomes(make.pool(engine__prefixCaching=False))
    assert roll.configs["old"].kv.shares_prefixes is False


def test_a_pool_that_was_planned_smaller_in_between_leaves_the_evidence():
    both = make.pool(engine__blockSize=32, memory__kvPool={"percent": 20})
    roll = Roll(old=H_OLD).becomes(SMALLER).becomes(both)
    assert (roll.configs["old"].kv.block_tokens, roll.configs["old"].kv.cap_blocks) == (16, 8_192)


@pytest.mark.parametrize(
    ("blocks", "tokens"),
    [
        pytest.param(make.CAP, 32_768, id="as many as its copy says, and not as many as the pool says now"),
        pytest.param(36_864, 16_384, id="as many as the pool says now"),
        pytest.param(9_000, 16_384, id="as many as neither says: the pool is believed"),
    ],
)
def test_of_blocks_of_one_size_their_number_tells(blocks, tokens):
    roll = Roll(old=None).report("old", blocks=blocks).becomes(NEWER)
    assert roll.configs["old"].kv.max_model_len == tokens


def test_a_pod_that_does_not_say_its_plan_keeps_it_while_its_engine_shows_it():
    roll = Roll(old=None).becomes(NEW)
    assert roll.plans == {"old": OF_OLD}
    assert roll.report("old", block_tokens=32).carry_out().plans == {"old": OF_NEW}


def test_a_pod_that_does_not_say_its_plan_has_the_one_in_force_where_its_copy_is_lost():
    assert Roll(old=None).forget_copies("old").becomes(NEW).plans == {"old": OF_NEW}


@pytest.mark.parametrize("ready", [True, False])
def test_from_a_pod_that_was_not_heard_of_nothing_is_concluded(ready):
    roll = Roll(old=None)
    assert roll.becomes(NEW, reports={}, pods=(make.pod("old", ready=ready),)).plans == {"old": OF_OLD}
    assert roll.report("old", block_tokens=32).carry_out().plans == {"old": OF_NEW}


class TestALostCopy:
    def test_another_pod_of_the_plan_tells_it(self):
        roll = Roll(old=H_OLD, twin=H_OLD).forget_copies("old").becomes(NEW)
        assert roll.configs["old"].kv == roll.configs["twin"].kv
        assert roll.plans == {"old": OF_OLD, "twin": OF_OLD}

    def test_one_that_is_being_written_tells_it(self):
        roll = Roll(old=H_OLD)
        roll.forget_copies("old").becomes(NEW, attempts=roll.observed.configs)
        writing = {"uid-old": Roll(old=H_OLD).configs["old"]}
        assert roll.forget_copies("old").becomes(NEW, attempts=writing).plans == {"old": OF_OLD}

    def test_else_the_engine_tells_its_size_and_all_tokens_are_taken_to_stay(self):
        roll = Roll(old=H_OLD).report("old", blocks=5_001).forget_copies("old").becomes(NEW)
        kv = roll.configs["old"].kv
        assert (kv.cap_blocks, kv.block_tokens, kv.groups) == (5_001, 16, (LayerGroup(kind="Full", block_tokens=16),))
        assert roll.configs["old"].plan == H_OLD

    def test_what_was_found_so_stays(self):
        roll = Roll(old=H_OLD).report("old", blocks=5_001).forget_copies("old").becomes(NEW)
        found = roll.configs["old"]
        roll.observed = replace(roll.observed, pods=(make.pod("old", plan=H_OLD, ready=False),), reports={})
        assert roll.carry_out().configs["old"] == found

    def test_an_engine_that_came_up_as_planned_now_has_that_plan_whatever_is_planned_next(self):
        roll = Roll(old=H_OLD).report("old", block_tokens=32).forget_copies("old").becomes(NEW)
        assert (roll.configs["old"].kv.block_tokens, roll.configs["old"].plan) == (32, H_OLD)
        assert roll.becomes(NEWER).configs["old"].kv.block_tokens == 32

    def test_what_is_planned_of_an_engine_is_more_than_what_it_reports(self):
        in_tokens = make.pool(model__kvCacheDtype="fp8", engine__blockSize=32, memory__kvPool={"tokens": 32 * 18_432})
        roll = Roll(old=H_OLD).report("old", block_tokens=32).forget_copies("old").becomes(in_tokens)
        assert roll.configs["old"].kv.bytes_per_block == 2 * 2**20

    @pytest.mark.parametrize(
        "engine",
        [
            pytest.param({"blocks": None}, id="the engine is loading"),
            pytest.param({"block_tokens": None}, id="the engine does not say the size of a block"),
        ],
    )
    def test_until_the_engine_tells_the_plan_in_force_holds(self, engine):
        fields = {"blocks": 5_001, **engine}
        roll = Roll(old=H_OLD).report("old", **fields).forget_copies("old").becomes(NEW)
        assert (roll.plans, roll.configs["old"].plan) == ({"old": OF_NEW}, H_NEW)
        assert roll.report("old", blocks=5_001).carry_out().configs["old"].kv.cap_blocks == 5_001

    def test_where_the_pool_does_not_parse_the_last_valid_plan_holds(self):
        roll = Roll(old=H_OLD, new=H_NEW).forget_copies("new").report("new", blocks=5_001)
        assert roll.becomes(make.unread_pool()).plans == {"old": OF_OLD, "new": OF_OLD}


class TestAnInvalidPlan:
    @pytest.mark.parametrize("pool", [INVALID, make.unread_pool()], ids=["does not fit", "does not parse"])
    def test_every_pod_keeps_its_own_and_a_new_one_gets_the_last_valid_one(self, pool):
        roll = rolling()
        before = roll.configs
        newest = msgspec.structs.replace(before["old"], generation=99)  # an old pod, often written since
        configs = {**roll.observed.configs, "uid-old": newest}
        roll.becomes(pool, configs=configs).join("third", H_NEW, block_tokens=32).carry_out()
        assert roll.plans == {"old": OF_OLD, "new": OF_NEW, "third": OF_NEW}
        assert roll.plan.pool_status["planHash"] == H_NEW

    def test_a_status_that_is_lost_leaves_the_newest_copy(self):
        roll = rolling()
        newest = msgspec.structs.replace(roll.configs["old"], generation=99)
        configs = {**roll.observed.configs, "uid-old": newest}
        roll.becomes(INVALID, configs=configs, pool_status={}).join("third", None, ready=False).carry_out()
        assert roll.plans == {"old": OF_OLD, "new": OF_NEW, "third": OF_OLD}


class TestAModelThatThePlannerDoesNotKnow:
    def test_pods_of_an_earlier_plan_keep_it_and_do_not_count_for_what_is_measured(self):
        roll = Roll(old=H_OLD).becomes(UNKNOWN).join("new", "-", blocks=3_001, block_tokens=64).carry_out()
        assert {name: (each.kv.cap_blocks, each.kv.block_tokens, each.plan) for name, each in roll.configs.items()} == {
            "old": (CAP_OLD, 16, H_OLD),
            "new": (3_001, 64, "-"),
        }

    def test_a_pod_that_does_not_say_its_plan_is_measured_too(self):
        roll = Roll(old=None).join("new", "-", blocks=20_001).becomes(UNKNOWN)
        assert {name: (each.kv.cap_blocks, each.plan) for name, each in roll.configs.items()} == {
            "old": (20_001, "-"),
            "new": (20_001, "-"),
        }

    def test_what_was_only_measured_has_no_hash_to_be_reviewed(self):
        roll = Roll(UNKNOWN).join("old", "-", blocks=3_001).carry_out()
        assert (roll.configs["old"].plan, "planHash" in roll.plan.pool_status) == ("-", False)
        assert "planHash" not in roll.becomes(make.unread_pool()).plan.pool_status

    def test_until_a_new_pod_reports_the_last_plan_stays(self):
        assert Roll(old=H_OLD).becomes(UNKNOWN).join("new", "-", blocks=None).carry_out().plans == {
            "old": OF_OLD,
            "new": OF_OLD,
        }

    def test_a_pod_that_was_admitted_without_a_plan_keeps_what_was_measured(self):
        roll = Roll(UNKNOWN, old="-").report("old", blocks=3_001, block_tokens=64).carry_out()
        roll.becomes(NEW).join("new", H_NEW, block_tokens=32).carry_out()
        assert {name: (each.kv.cap_blocks, each.plan) for name, each in roll.configs.items()} == {
            "old": (3_001, "-"),
            "new": (CAP_NEW, H_NEW),
        }

    def test_a_pod_that_does_not_say_its_plan_has_the_one_that_is_planned_at_last(self):
        roll = Roll(UNKNOWN).join("old", None, blocks=3_001, block_tokens=64).carry_out()
        assert roll.configs["old"].plan == "-"
        assert roll.becomes(NEW).configs["old"].plan == H_NEW


EARLIER = (
    "pod old has 18,432 blocks (294,912 tokens, 36 GiB on one GPU) of llama-3.1-8b-instruct by an earlier plan, with"
    " which the engine was started; planned are now 18,432 blocks (589,824 tokens, 36 GiB on one GPU) of llama-fp8. On"
    " each pod quotas hold by its own plan: roll the pods out again (kubectl rollout restart)"
)


class TestWhatIsSaid:
    def test_pods_of_an_earlier_plan_are_named_with_both_sizes(self):
        assert rolling().condition("PartitionApplied") == ("False", "EarlierPlan", EARLIER)

    def test_all_is_well_when_they_are_gone(self):
        assert rolling().leave("old").carry_out().condition("PartitionApplied")[:2] == ("True", "Applied")

    def test_several_earlier_plans_are_told_apart(self):
        roll = rolling().join("twin", H_OLD).becomes(NEWER)
        told = roll.condition("PartitionApplied")[2]
        assert told.startswith(
            "pod new has 18,432 blocks (589,824 tokens, 36 GiB on one GPU) of llama-fp8; pods old, twin"
        )

    def test_before_any_pod_has_the_new_plan_the_quotas_say_what_it_will_make_them_worth(self):
        roll = Roll(old=H_OLD).becomes(NEW)
        status = roll.plan.quota_statuses["batch"]
        assert (status["soft"], status["planHash"]) == ({"blocks": 625, "tokens": 20_000}, H_NEW)
        assert status["reviewed"]["soft"] == {"blocks": 1_250, "tokens": 20_000}
        assert roll.condition("QuotaReviewed")[:2] == ("False", "PlanChanged")
        assert (
            "hard 4,096 blocks (65,536 tokens) -> 4,096 blocks (131,072 tokens)" in roll.condition("QuotaReviewed")[2]
        )

    def test_what_they_will_be_worth_is_of_engines_as_they_will_be_started(self):
        status = Roll(old=H_OLD).becomes(quotas=ON_EACH_POD).becomes(NEWER).plan.quota_statuses["search"]
        assert (status["soft"]["blocks"], status["hard"]["blocks"]) == (14_745, 22_117)

    def test_parts_that_are_kept_are_told_as_each_pod_has_them(self):
        wanted = {"scope": "Pool", "maxContextTokens": 1_600, "kv": {"hard": {"tokens": 16 * 4_001}}}
        roll = Roll(a=H_OLD, b=H_OLD, quotas=make.seen(make.quota("search", **wanted)))
        assert [make.hards(each)["search"] for each in roll.configs.values()] == [2_001, 2_000]
        shorter = make.pool(model__maxModelLen=16_384)
        roll.becomes(shorter, quotas=make.seen(make.quota("search", tier="gone", **wanted)))
        assert roll.plan.quota_statuses["search"]["hard"]["blocks"] == 4_001

    def test_a_limit_over_all_pods_is_told_as_it_will_be(self):
        over_all = make.seen(make.quota("search", scope="Pool", kv={"hard": {"percent": 50}}))
        roll = Roll(a=H_OLD, b=H_OLD).becomes(quotas=over_all)
        before = {"blocks": 18_431, "tokens": 294_896}
        assert roll.plan.quota_statuses["search"]["hard"] == before
        status = roll.becomes(NEW).plan.quota_statuses["search"]
        assert (status["reviewed"]["hard"], status["hard"]) == (before, {"blocks": 18_431, "tokens": 589_792})

    def test_while_the_last_pod_of_an_earlier_plan_leaves_the_quotas_say_what_the_next_will_make_them_worth(self):
        over_all = make.seen(make.quota("search", scope="Pool", kv={"hard": {"percent": 50}}))
        roll = Roll(old=H_OLD).becomes(NEW, quotas=over_all)
        roll.becomes(pods=(make.pod("old", plan=H_OLD, deleting=True),))
        assert (roll.configs, roll.plan.quota_statuses["search"]["hard"]["tokens"]) == ({}, 9_215 * 32)

    def test_what_pods_of_unequal_plans_hold_is_added_in_tokens_and_in_blocks_of_the_plan_in_force(self):
        usage = {"reserved": 300, "used": 100, "over_soft": 11}
        roll = Roll(old=H_OLD).becomes(NEWER).join("new", make.plan_hash(NEWER), blocks=36_864)
        pool = make.pool_usage(reserved=500, used=200, unattributed=10)
        for name, blocks in (("old", make.CAP), ("new", 36_864)):
            roll.report(name, make.tenant_usage("search", in_flight=3, **usage), pool=pool, blocks=blocks)
        status = roll.carry_out().plan.quota_statuses["search"]
        assert {name: status[name] for name in ("reserved", "used", "overSoft", "inFlight")} == {
            "reserved": {"blocks": 900, "tokens": 9_600},
            "used": {"blocks": 300, "tokens": 3_200},
            "overSoft": {"blocks": 33, "tokens": 352},
            "inFlight": 6,
        }
        kv = roll.plan.pool_status["kv"]
        assert {name: kv[name]["blocks"] for name in ("cap", "measured", "reserved", "used", "unattributed")} == {
            "cap": 36_864,
            "measured": 2 * 18_432 + 36_864,
            "reserved": 1_500,
            "used": 600,
            "unattributed": 30,
        }
        assert kv["measured"]["tokens"] == 16 * (18_432 + 36_864)

    def test_softs_that_fit_the_plan_in_force_and_not_an_earlier_one_are_said_to_be_scaled_there(self):
        quotas = make.seen(
            make.quota("a", kv={"soft": {"tokens": 200_000}}), make.quota("b", kv={"soft": {"tokens": 90_000}})
        )
        roll = rolling().becomes(quotas=quotas)
        assert (make.softs(roll.configs["old"]), make.softs(roll.configs["new"])) == (
            {"a": 10_804, "b": 4_861},
            {"a": 6_250, "b": 2_813},
        )
        verdict = roll.quota("a", "QuotaWithinCapacity")
        assert verdict[:2] == ("False", "Oversubscribed")
        assert verdict[2].startswith(
            "on pods that have an earlier plan (see the condition PartitionApplied of the pool)"
        )
        assert roll.leave("old").carry_out().quota("a", "QuotaWithinCapacity")[:2] == ("True", "WithinCapacity")


def test_a_share_that_is_kept_is_no_more_by_another_plan():
    roll = Roll(old=H_OLD).becomes(quotas=ON_EACH_POD)
    roll.becomes(NEWER).join("new", make.plan_hash(NEWER), blocks=36_864)
    quotas = tuple(each for each in roll.observed.quotas if each.quota.metadata.name != "search")
    roll.becomes(quotas=quotas, invalid=(make.unread("search"),))
    assert {name: make.softs(each)["search"] for name, each in roll.configs.items()} == {"old": 7_372, "new": 7_372}
    assert {name: make.hards(each)["search"] for name, each in roll.configs.items()} == {"old": 11_058, "new": 11_058}
