"""Quota over pods: whatever is lost, late, forgotten or comes back, a limit over all pods is never passed by them.

The machine's limits are in tokens and percents, its pods unequal. What it asserts after every step is of the pods and
of everything that is on its way to them, never of what the operator believes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)

import reconcile_builders as make
from distribution_world import UNITS, Pod, World
from kvquota_operator.planning.following import FLOOR, STEP
from kvquota_operator.reconcile.demands import OWN_SEQUENCES
from kvquota_operator.reconcile.usage import OWN_HARD
from machines import Counting, Run, explore

NAMES = ("search", "batch")
MOUNTS = st.sampled_from([True, True, True, False])
SIZES = st.sampled_from([make.CAP, make.CAP, 9_001, 3_001])
MOST_PODS = 5
MOST_WRITES = 8  # of one pod's copy, until all is settled for what is asked for: twice what was ever seen
SHORT = Run(settings(max_examples=200, stateful_step_count=50), steps=1_500)
LONG = Run(settings(max_examples=2_000, stateful_step_count=150), steps=100_000)

hards = st.sampled_from(
    [{"tokens": 40_000}, {"tokens": 160_000}, {"tokens": 12_800}, {"percent": 30}, {"percent": 60}, {"tokens": 0}, None]
)
specs = st.fixed_dictionaries(
    {"scope": st.sampled_from(["Pool", "Pool", "Pool", "PerReplica"]), "hard": hards},
    optional={
        "maxConcurrentRequests": st.sampled_from([1, 2, 7, 12]),
        "maxContextTokens": st.sampled_from([160, 1_600, 16_000]),
        "soft": st.sampled_from([{"percent": 1}, {"tokens": 1_600}]),
    },
)


def quota(name: str, spec: dict):
    kv = {unit: spec[unit] for unit in ("soft", "hard") if spec.get(unit) is not None}
    if kv.get("soft") and kv.get("hard") and set(kv["soft"]) == set(kv["hard"]):
        del kv["soft"]
    fields = {key: value for key, value in spec.items() if key not in ("soft", "hard")}
    return make.quota(name, age=NAMES.index(name), kv=kv, **fields)


class DistributionMachine(Counting):
    """Every rule is one thing that may happen at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.before = dict.fromkeys(NAMES, (0, 0))

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        for name in NAMES:
            self.world.quotas[name] = quota(name, data.draw(specs, name))
        for _ in range(data.draw(st.integers(1, 3), "pods")):
            self.world.join(size=data.draw(SIZES, "size"), mounts=data.draw(MOUNTS, "mounts"))
        if data.draw(MOUNTS, "settled"):
            self.settle()

    def pod(self, data: st.DataObject, which: Callable[[Pod], object] = bool) -> Pod:
        """One of those that are so; one of all where none is."""
        pods = [each for each in self.world.pods.values() if which(each)] or list(self.world.pods.values())
        return pods[data.draw(st.integers(0, len(pods) - 1), "pod")]

    def is_behind(self, pod: Pod) -> bool:
        return pod.runs and pod.seen.config_map is not None and pod.disk != self.world.copies.get(pod.uid)

    has_pods = precondition(lambda self: bool(self.world.pods))
    has_runners = precondition(lambda self: any(pod.runs for pod in self.world.pods.values()))
    has_pending = precondition(lambda self: not all(pod.runs for pod in self.world.pods.values()))
    has_room = precondition(lambda self: len(self.world.pods) < MOST_PODS)
    has_vanished = precondition(lambda self: any(pod.vanished for pod in self.world.pods.values()))
    has_writes = precondition(lambda self: bool(self.world.writes))
    has_leaving = precondition(lambda self: any(pod.seen.deleting for pod in self.world.pods.values()))
    has_underway = precondition(lambda self: any(pod.underway for pod in self.world.pods.values()))
    has_work = precondition(lambda self: any(any(pod.work.values()) for pod in self.world.pods.values()))

    @has_room
    @rule(size=SIZES, mounts=MOUNTS, name=st.sampled_from("apz"), runs=st.booleans())
    def a_pod_joins(self, size: int, mounts: bool, name: str, runs: bool) -> None:
        self.world.join(size=size, mounts=mounts, name=name, runs=runs)

    @has_room
    @has_runners
    @rule(size=SIZES, mounts=MOUNTS, name=st.sampled_from("apz"))
    def a_pod_joins_for_which_there_is_no_node(self, size: int, mounts: bool, name: str) -> None:
        """It takes nothing from those that serve, and gives them nothing."""
        self.settle()
        before = {uid: pod.documents.config for uid, pod in self.world.pods.items()}
        pending = self.world.join(size=size, mounts=mounts, name=name, runs=False)
        self.settle()
        assert {uid: pod.documents.config for uid, pod in self.world.pods.items() if pod is not pending} == before
        self.met["no node"] += 1

    @has_pending
    @rule(data=st.data(), fresh=st.booleans())
    def there_is_a_node(self, data: st.DataObject, fresh: bool) -> None:
        pod = self.pod(data, lambda pod: not pod.runs)
        pod.start(self.world.copies.get(pod.uid) if fresh else None)
        self.met["started late"] += 1

    @has_runners
    @rule(data=st.data())
    def a_pod_is_ready_or_not(self, data: st.DataObject) -> None:
        pod = self.pod(data, lambda pod: pod.runs)
        pod.seen = replace(pod.seen, ready=not pod.seen.ready)

    @has_pods
    @rule(data=st.data())
    def a_pod_is_told_to_leave(self, data: st.DataObject) -> None:
        self.world.leave(self.pod(data))

    @has_leaving
    @rule(data=st.data())
    def a_pod_is_gone(self, data: st.DataObject) -> None:
        self.world.gone(self.pod(data, lambda pod: pod.seen.deleting))

    @has_runners
    @rule(data=st.data())
    def the_object_vanishes_and_the_pod_works_on(self, data: st.DataObject) -> None:
        """Deleted by force: it goes on with what it has, takes what is on its way to it, and nobody hears of it."""
        self.world.vanish(self.pod(data, lambda pod: pod.runs and not pod.vanished))
        self.met["vanished"] += 1

    @has_runners
    @rule(data=st.data())
    def a_pod_leaves_the_selector_and_works_on(self, data: st.DataObject) -> None:
        """Its labels were taken: it goes on with what it has, for as long as anybody likes, and has a durable copy."""
        pods = self.world.pods.values()
        here = [each for each in pods if each.runs and not each.vanished and each.uid in self.world.copies]
        if here:
            self.world.deselect(data.draw(st.sampled_from(here), "who leaves"))
            self.met["left"] += 1
            for _ in range(data.draw(st.sampled_from([0, 3]), "passes")):
                self.world.grace_periods_end()
                self.world.whole_pass()

    @has_vanished
    @rule()
    def grace_periods_end(self) -> None:
        self.world.grace_periods_end()

    @has_runners
    @rule(data=st.data())
    def a_sidecar_starts_anew(self, data: st.DataObject) -> None:
        behind = any(self.is_behind(pod) for pod in self.world.pods.values())
        pod = self.pod(data, self.is_behind if behind else lambda pod: pod.runs)
        self.met["came back with an old config"] += pod.disk is not None and self.is_behind(pod)
        pod.crash()

    @has_runners
    @rule(data=st.data())
    def a_pod_falls_silent_or_is_back(self, data: st.DataObject) -> None:
        pod = self.pod(data, lambda pod: pod.runs)
        pod.reachable = not pod.reachable

    @has_pods
    @rule(data=st.data())
    def a_node_refreshes_a_volume(self, data: st.DataObject) -> None:
        pod = self.pod(data, self.is_behind)
        pod.refresh(self.world.copies.get(pod.uid))

    @has_pods
    @rule(data=st.data(), name=st.sampled_from(NAMES), part=st.sampled_from([1, 2, 3]))
    def a_client_asks(self, data: st.DataObject, name: str, part: int) -> None:
        pod = self.pod(data)
        share = pod.share(f"inference/{name}")
        if share is not None:
            self.met["ran"] += pod.admit(share.id, max(1, share.hard_blocks // part))

    @has_pods
    @rule(data=st.data(), name=st.sampled_from(NAMES), refused=st.sampled_from([1, 20, 1_000]))
    def many_clients_ask(self, data: st.DataObject, name: str, refused: int) -> None:
        """They take all that there is, and others are refused, for want of blocks and of sequences."""
        pod = self.pod(data, lambda pod: pod.runs)
        pod.rush.add(f"inference/{name}")
        for limit in (OWN_HARD, OWN_SEQUENCES):
            pod.recent.setdefault(f"inference/{name}", Counter())[limit] += refused

    @has_pods
    @rule(data=st.data())
    def ten_minutes_pass(self, data: st.DataObject) -> None:
        """Nothing was refused in them, nor admitted."""
        pod = self.pod(data, lambda pod: pod.recent)
        pod.recent, pod.rush = {}, set()

    @has_runners
    @rule(data=st.data(), held=st.sampled_from([0, 0, 700, 2**60]), refused=st.sampled_from([0, 5, 2**60]))
    def a_pod_boasts(self, data: st.DataObject, held: int, refused: int) -> None:
        """It claims to hold more than it does, or to have refused more."""
        self.pod(data, lambda pod: pod.runs).boasts = held, refused

    @has_work
    @rule(data=st.data())
    def a_request_ends(self, data: st.DataObject) -> None:
        running = self.pod(data, lambda pod: any(pod.work.values())).work
        next(each for each in running.values() if each).pop()

    @rule(name=st.sampled_from(NAMES), spec=specs)
    def a_quota_is_edited(self, name: str, spec: dict) -> None:
        self.world.unread.pop(name, None)
        self.world.quotas[name] = quota(name, spec)

    @rule(name=st.sampled_from(NAMES), edits=st.tuples(specs, specs))
    def a_quota_is_edited_faster_than_configs_arrive(self, name: str, edits: tuple[dict, ...]) -> None:
        for spec in edits:
            self.a_quota_is_edited(name, spec)
            self.world.whole_pass(arrives=False)
            self.no_limit_over_all_pods_is_passed()

    @rule(name=st.sampled_from(NAMES), readable=st.booleans())
    def a_quota_goes(self, name: str, readable: bool) -> None:
        """Deleted, or edited so that nobody can read it any more."""
        self.world.quotas.pop(name, None)
        self.world.unread.pop(name, None)
        if not readable:
            self.world.unread[name] = make.unread(name)

    @rule()
    def the_operator_starts_anew(self) -> None:
        """What was seen to vanish is known to the other replica, which has watched it too."""
        self.world.forget()
        self.met["operator started anew"] += 1

    @rule()
    def the_operator_decides(self) -> None:
        self.world.decide()

    @has_pods
    @rule(data=st.data())
    def a_write_begins(self, data: st.DataObject) -> None:
        self.world.write(self.pod(data))

    @has_writes
    @rule(data=st.data(), stored=st.booleans(), told=st.booleans())
    def a_write_ends(self, data: st.DataObject, stored: bool, told: bool) -> None:
        write = data.draw(st.sampled_from(self.world.writes), "write")
        self.world.land(write, stored=stored, told=told)

    @has_pods
    @rule(data=st.data())
    def a_pod_is_asked(self, data: st.DataObject) -> None:
        self.world.ask(self.pod(data))

    @has_underway
    @rule(data=st.data())
    def a_config_arrives(self, data: st.DataObject) -> None:
        pod = self.pod(data, lambda pod: len(pod.underway) > 1)
        pod = pod if pod.underway else self.pod(data, lambda pod: pod.underway)
        place = data.draw(st.integers(0, len(pod.underway) - 1), "which")
        self.met["out of order"] += place > 0
        pod.take(pod.underway.pop(place), "Channel")

    @rule()
    def a_pass(self) -> None:
        self.world.whole_pass()

    @rule()
    def a_pass_whose_configs_are_late(self) -> None:
        self.world.whole_pass(arrives=False)

    @rule()
    def all_is_quiet(self) -> None:
        self.settle()
        self.everything_is_given_out()
        self.parts_follow_demand()

    def settle(self) -> None:
        """No new clients, no faults, for as long as it takes: what was asked for lately is asked for all the time."""
        world = self.world
        world.end_those_that_left()
        world.grace_periods_end()
        for pod in tuple(world.pods.values()):
            if pod.seen.deleting:
                world.gone(pod)
            pod.reachable, pod.work, pod.boasts = pod.runs, {}, (0, pod.boasts[1])
            pod.seen = replace(pod.seen, ready=pod.runs)
        before = None
        world.written.clear()
        while before != world.copies:
            before = dict(world.copies)
            assert max(world.written.values(), default=0) <= MOST_WRITES, world.written
            for _ in range(2):
                world.whole_pass()
                for pod in world.pods.values():
                    pod.refresh(world.copies.get(pod.uid))
                    world.ask(pod)
        self.met["settled"] += 1
        self.met["most writes"] = max(self.met["most writes"], *world.written.values(), 0)

    def everything_is_given_out(self) -> None:
        """But what may be held by pods that do not run; then less than a request, or no sequence, may be left over."""
        world = self.world
        running = [pod for pod in world.pods.values() if pod.runs]
        for name in world.quotas.keys() & set(NAMES) if running else ():
            limit, held = world.limit(name), world.held_without_a_node(f"inference/{name}")
            if limit is None:
                continue
            shares = [pod.share(f"inference/{name}") for pod in running]
            given = [share for share in shares if share is not None and share.hard_blocks]
            whole = {share.whole_hard_blocks for share in shares}
            assert len(whole) == 1
            full = all(share.hard_blocks == min(pod.size, make.CAP) - 1 for pod, share in _given(world, name))
            together, most = sum(share.hard_blocks for share in given), whole.pop()
            if any(held):
                sequences = sum(share.max_concurrent_requests or 0 for share in given)
                assert (
                    full or most - world.longest_request(name) < together + held[0] or limit[1] <= sequences + held[1]
                ), (most, together, sequences, held, limit)
                continue
            assert full or together == most <= limit[0]
            if given and given[0].max_concurrent_requests is not None:
                assert sum(share.max_concurrent_requests for share in given) == limit[1]

    def parts_follow_demand(self) -> None:
        """Who asks for an equal part or more has one, but for less than is worth a move; nobody less than the floor."""
        world = self.world
        for name in world.quotas.keys() & set(NAMES):
            tenant, limit = f"inference/{name}", world.limit(name)
            served = list(_given(world, name))
            if limit is None or not served or any(world.held_without_a_node(tenant)):
                continue
            equal = sum(share.hard_blocks for _, share in served) // len(served)
            longest = world.longest_request(name)
            uneven = {share.hard_blocks for _, share in served}
            for pod, share in served:
                room = min(pod.size, make.CAP) - 1
                uses, sequences = pod.rushed(tenant)
                asks = uses + pod.refused(tenant)[0] * -(-uses // sequences) if sequences else 0
                assert share.hard_blocks >= min(asks, equal, room) - max(1, equal // STEP), (asks, equal, uneven)
                assert share.hard_blocks >= min(equal, room, max(longest, equal // FLOOR)), (longest, equal, uneven)
                self.met["follow"] += share.hard_blocks > equal + 1 and room > equal < asks

    @invariant()
    def no_limit_over_all_pods_is_passed(self) -> None:
        """Nor comes nearer to being passed by more, where it is already: it was lowered, or pods have gone."""
        type(self).steps += 1
        for name in NAMES:
            tenant, limit = f"inference/{name}", self.world.limit(name)
            possible, in_force = self.world.possible(tenant), self.world.in_force(tenant)
            if limit is not None:
                for unit, now, most, before in zip(UNITS, possible, limit, self.before[name], strict=True):
                    assert now <= max(most, before), f"{tenant}: {now} {unit} of {most}, and {before} before"
                    self.met["moving"] += bool(0 < most < before)
            assert all(now <= most for now, most in zip(in_force, possible, strict=True))
            self.before[name] = possible

    @invariant()
    def no_pod_guarantees_more_than_it_has(self) -> None:
        world = self.world
        for uid, config in world.wanted.items():
            seen = world.known.get(uid)
            if seen is None or seen.report is None or config == world.stored.get(uid):
                continue
            usable = min(seen.report.engine.blocks, make.CAP) - 1
            assert sum(share.soft_blocks for share in config.tenants) <= usable * 85 // 100
            computed = [share for share in config.tenants if share.quota not in world.kept]
            assert all(share.soft_blocks <= share.hard_blocks <= usable for share in computed)

    def teardown(self) -> None:
        self.all_is_quiet()


def _given(world: World, name: str):
    for pod in world.pods.values():
        share = pod.share(f"inference/{name}")
        if share is not None and share.hard_blocks:
            yield pod, share


MUST = (
    "came back with an old config",
    "operator started anew",
    "out of order",
    "ran",
    "moving",
    "settled",
    "no node",
    "started late",
    "follow",
    "vanished",
    "left",
)


def test_distribution_machine() -> None:
    explore(DistributionMachine, short=SHORT, long=LONG, must=MUST)
