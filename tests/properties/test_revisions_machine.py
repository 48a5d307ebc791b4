"""A pool that rolls from plan to plan, and back: whatever joins, leaves, is late or is forgotten, each pod has the plan
of its revision, guarantees no more than its own engine has, and a limit over all pods is never passed.

What is asserted is of the pods and of everything that is on its way to them, in tokens: of blocks there are several
sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)

import reconcile_builders as make
from distribution_world import Pod, World
from kvquota_api.model_pool import ModelPool
from kvquota_api.pod_config import KvPlan, PodConfig
from kvquota_api.usage import UsageReport
from kvquota_operator.injection.outcomes import Target
from kvquota_operator.injection.planned import target_of
from kvquota_operator.planner import Planner
from kvquota_operator.reconcile.observed import InvalidSeen, Observed
from kvquota_operator.reconcile.reconcile import reconcile
from machines import Counting, Run, explore

FP8 = {"model__name": "fp8", "model__kvCacheDtype": "fp8"}
POOLS: dict[str, ModelPool | InvalidSeen] = {
    "old": make.pool(),
    "old, other blocks": make.pool(engine__blockSize=32),
    "old, a smaller pool": make.pool(memory__kvPool={"percent": 20}),
    "new": make.pool(**FP8, engine__blockSize=32),
    "newer": make.pool(**FP8, model__maxModelLen=16_384),
    "too large": make.pool(**FP8, memory__kvPool={"percent": 95}),
    "unread": make.unread_pool(),
}
TARGETS = {name: target_of(pool, None, ()) for name, pool in POOLS.items() if isinstance(pool, ModelPool)}
TARGETS = {name: target for name, target in TARGETS.items() if target.kv is not None}
NAMES = ("search", "batch")
MOST_PODS = 5
MOST_ROUNDS = 12  # until nothing moves any more
SHORT = Run(settings(max_examples=60, stateful_step_count=40), steps=1_500)
LONG = Run(settings(max_examples=1_500, stateful_step_count=120), steps=50_000)

tokens = st.sampled_from([0, 12_800, 64_000, 160_000, 640_000])
softs = st.sampled_from([None, {"percent": 30}, {"percent": 70}, {"bytes": "20Gi"}])
quotas = st.fixed_dictionaries({"hard": tokens, "soft": softs})


@dataclass
class Started(Pod):
    """A pod whose engine was started by the plan `kv`; `plan`: the name of that, also where the pod does not say it."""

    kv: KvPlan | None = None
    plan: str = ""

    def report(self) -> UsageReport:
        found = super().report()
        assert self.kv is not None
        return make.report(*found.tenants, blocks=self.size, block_tokens=self.kv.block_tokens, in_force=found.in_force)


class Rolling(World):
    """`pool`: as it is now; `last`: the name of the last one that had a valid plan."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = self.last = "old"
        self.status: dict[str, object] = {}
        self.planners = {name: Planner() for name in POOLS}

    def observed(self) -> Observed:
        return replace(super().observed(), pool=POOLS[self.pool], pool_status=self.status)

    def decide(self) -> None:
        self.known, self.stored = dict(self.reports), dict(self.copies)
        plan = reconcile(self.observed(), make.NOW, make.WALL, self.planners[self.pool])
        self.wanted, self.status = {config.pod.uid: config for config in plan.configs}, plan.pool_status

    def start(self, *, says: bool) -> Started:
        """A pod as the webhook lets it in; one that was written by hand says nothing, and starts by the last plan."""
        self.born += 1
        target = self.target()
        says = says and target is not None
        target = target or TARGETS[self.last]
        assert target.kv is not None
        seen = replace(make.pod(f"p{self.born}", ready=False), config_map=f"kvq-{self.born:032x}")
        seen = replace(seen, plan=target.plan_hash if says else None)
        pod = Started(seen, target.kv.cap_blocks, kv=target.kv, plan=target.plan_hash)
        self.pods[pod.uid] = pod
        return pod

    def target(self) -> Target | None:
        """None where the webhook has no plan to start a pod by."""
        pool = POOLS[self.pool]
        if isinstance(pool, InvalidSeen):
            return None
        found = TARGETS.get(self.pool) or target_of(pool, None, self.copies.values(), self.status)
        return None if found.kv is None else found

    def tells(self, plan: str) -> bool:
        """Whether the pool, or anything that is stored or on its way, tells this plan."""
        known = (*self.stored.values(), *self.attempts.values())
        now = TARGETS.get(self.pool)
        return (now is not None and plan == now.plan_hash) or any(config.plan == plan for config in known)

    def tokens(self, tenant: str) -> int:
        """What all pods together may come to hold by anything that is decided already."""
        return sum(
            max((_tokens(config, tenant) for config in self.configs_of(pod)), default=0) for pod in self.pods.values()
        )

    def configs_of(self, pod: Pod) -> list[PodConfig]:
        now = pod.documents.in_force().generation
        found = [pod.documents.config, pod.disk, *(each for each in pod.underway if each.generation > now)]
        found += [each.config for each in self.writes if each.config.pod.uid == pod.uid]
        found += [each.get(pod.uid) for each in (self.copies, self.attempts, self.wanted)]
        return [each for each in found if each is not None]


def _tokens(config: PodConfig, tenant: str) -> int:
    return sum(share.hard_blocks * config.kv.block_tokens for share in config.tenants if share.id == tenant)


class RevisionsMachine(Counting):
    """Every rule is one thing that may happen at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.world = Rolling()
        self.limits: dict[str, int] = {}
        self.before = dict.fromkeys(NAMES, 0)
        self.guessed: set[str] = set()
        self.planned = {self.world.last}

    @initialize(data=st.data(), settled=st.booleans())
    def begin(self, data: st.DataObject, settled: bool) -> None:
        for name in NAMES:
            self.a_quota_is_edited(name, data.draw(quotas, name))
        for says in data.draw(st.lists(st.booleans(), min_size=1, max_size=3), "pods"):
            self.world.start(says=says)
        if settled:
            self.all_is_quiet()

    def pod(self, data: st.DataObject) -> Pod:
        pods = list(self.world.pods.values())
        return pods[data.draw(st.integers(0, len(pods) - 1), "pod")]

    has_pods = precondition(lambda self: bool(self.world.pods))
    has_room = precondition(lambda self: len(self.world.pods) < MOST_PODS)
    has_writes = precondition(lambda self: bool(self.world.writes))

    @rule(pool=st.sampled_from(sorted(POOLS)))
    def the_pool_is_edited(self, pool: str) -> None:
        self.met["back"] += pool in self.planned and pool != self.world.last
        self.planned |= {pool} & TARGETS.keys()
        self.world.pool = pool
        self.world.decide()  # so that its status says which plan is the last valid one
        self.world.last = pool if pool in TARGETS else self.world.last
        self.everything_is_as_it_must_be()

    @has_room
    @rule(says=st.sampled_from([True, True, False]))
    def a_pod_joins(self, says: bool) -> None:
        self.world.start(says=says)
        self.met["joined while the plan was invalid"] += self.world.pool not in TARGETS

    @has_room
    @rule(pool=st.sampled_from(sorted(POOLS.keys() - TARGETS.keys())), says=st.booleans())
    def an_edit_goes_wrong(self, pool: str, says: bool) -> None:
        self.the_pool_is_edited(pool)
        self.a_pod_joins(says=says)
        self.all_is_quiet()

    @has_room
    @rule(pool=st.sampled_from(sorted(TARGETS)))
    def a_roll_begins(self, pool: str) -> None:
        self.all_is_quiet()
        self.the_pool_is_edited(pool)
        self.all_is_quiet()
        self.a_pod_joins(says=True)
        self.all_is_quiet()

    @has_pods
    @rule(data=st.data())
    def a_pod_is_told_to_leave(self, data: st.DataObject) -> None:
        self.world.leave(self.pod(data))

    @has_pods
    @rule(data=st.data())
    def a_pod_is_gone(self, data: st.DataObject) -> None:
        self.world.gone(self.pod(data))

    @has_pods
    @rule(data=st.data())
    def a_sidecar_starts_anew(self, data: st.DataObject) -> None:
        self.pod(data).crash()

    @has_pods
    @rule(data=st.data())
    def a_pod_is_ready_or_not(self, data: st.DataObject) -> None:
        pod = self.pod(data)
        pod.seen = replace(pod.seen, ready=not pod.seen.ready)

    @has_pods
    @rule(data=st.data())
    def a_node_refreshes_a_volume(self, data: st.DataObject) -> None:
        pod = self.pod(data)
        pod.refresh(self.world.copies.get(pod.uid))

    @rule(name=st.sampled_from(NAMES), spec=quotas)
    def a_quota_is_edited(self, name: str, spec: dict) -> None:
        kv = {unit: spec[unit] for unit in ("soft",) if spec[unit] is not None} | {"hard": {"tokens": spec["hard"]}}
        self.world.quotas[name] = make.quota(name, age=NAMES.index(name), scope="Pool", kv=kv, maxContextTokens=1_600)
        self.limits[name] = spec["hard"]

    @rule()
    def the_operator_starts_anew(self) -> None:
        self.world.forget()
        self.met["operator started anew"] += 1

    @has_writes
    @rule(data=st.data(), stored=st.booleans(), told=st.booleans())
    def a_write_ends(self, data: st.DataObject, stored: bool, told: bool) -> None:
        self.world.land(data.draw(st.sampled_from(self.world.writes), "write"), stored=stored, told=told)

    @has_pods
    @rule(data=st.data())
    def a_write_begins(self, data: st.DataObject) -> None:
        self.world.write(self.pod(data))

    @rule(arrives=st.booleans())
    def a_pass(self, arrives: bool) -> None:
        self.world.whole_pass(arrives=arrives)

    @rule()
    def all_is_quiet(self) -> None:
        """No faults, for as long as it takes."""
        world = self.world
        for pod in tuple(world.pods.values()):
            if pod.seen.deleting:
                world.gone(pod)
        before, rounds = None, 0
        while before != world.copies:
            before, rounds = dict(world.copies), rounds + 1
            assert rounds < MOST_ROUNDS
            for _ in range(2):
                world.whole_pass()
                self.everything_is_as_it_must_be()
                for pod in world.pods.values():
                    pod.refresh(world.copies.get(pod.uid))
                    world.ask(pod)
        self.met["settled"] += 1
        self.conditions_say_who_has_another_plan()

    def conditions_say_who_has_another_plan(self) -> None:
        world, now = self.world, TARGETS[self.world.last].kv
        assert now is not None
        others = [uid for uid, config in world.wanted.items() if config.kv != now]
        _, reason, message = make.condition(world.status, "PartitionApplied")
        self.met["two plans at once"] += bool(others) and len(others) < len(world.pods)
        if world.pool in TARGETS:
            assert (reason == "EarlierPlan") == bool(others)
            assert all(world.pods[uid].seen.name in message for uid in others)
        if len({pod.plan for pod in world.pods.values()}) > 1:
            self.met["two revisions at once"] += 1

    @invariant()
    def everything_is_as_it_must_be(self) -> None:
        type(self).steps += 1
        for uid, config in self.world.wanted.items():
            pod = self.world.pods.get(uid)
            if isinstance(pod, Started) and config != self.world.stored.get(uid):
                self.it_has_the_plan_of_its_revision(pod, config)
                self.it_guarantees_no_more_than_it_has(pod, config)
        for name in NAMES:
            now = self.world.tokens(f"inference/{name}")
            assert now <= max(self.limits.get(name, 0), self.before[name]), f"{name}: {now} of {self.limits}"
            self.met["moving"] += 0 < self.limits.get(name, 0) < self.before[name]
            self.before[name] = now

    def it_has_the_plan_of_its_revision(self, pod: Started, config: PodConfig) -> None:
        """But for the size of the pool, which is as planned now; of an engine that nobody tells of, its own numbers."""
        kv, world = config.kv, self.world
        of_pod = {_any_size(each.kv) for each in TARGETS.values() if each.kv and each.plan_hash == pod.plan}
        if pod.seen.plan is None:
            assert _any_size(kv) in of_pod | {_any_size(each.kv) for each in TARGETS.values() if each.kv}
            return
        if not world.tells(pod.plan):
            self.guessed.add(pod.plan)
            self.met["guessed"] += 1
        if pod.plan not in self.guessed:
            assert config.plan == pod.plan
            assert _any_size(kv) in of_pod

    def it_guarantees_no_more_than_it_has(self, pod: Started, config: PodConfig) -> None:
        seen = self.world.known.get(pod.uid)
        size = pod.size if seen is not None and seen.report is not None else config.kv.cap_blocks
        usable = min(size, config.kv.cap_blocks) - 1
        assert sum(share.soft_blocks for share in config.tenants) <= usable * 85 // 100
        kept = self.world.pool == "unread"  # then a hard stays as it was in an earlier config, also of another plan
        assert all(share.soft_blocks <= share.hard_blocks <= usable or kept for share in config.tenants)

    def teardown(self) -> None:
        self.all_is_quiet()


def _any_size(kv: KvPlan) -> tuple[object, ...]:
    return kv.block_tokens, kv.bytes_per_block, kv.max_model_len, kv.groups, kv.null_blocks


MUST = (
    "back",
    "joined while the plan was invalid",
    "operator started anew",
    "settled",
    "two plans at once",
    "two revisions at once",
    "moving",
)


def test_revisions_machine() -> None:
    explore(RevisionsMachine, short=SHORT, long=LONG, must=MUST)
