"""Streams of reports through the whole decision: how often a status is written, and what stands there in the end."""

from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

import reconcile_builders as make
from kvquota_api.usage import Counts
from kvquota_operator.reconcile.reconcile import reconcile
from kvquota_operator.reconcile.writes import NEVER, WRITE_SECONDS, differs, due

POOL = "the pool"

pauses = st.sampled_from([0.05, 0.5, 1.0, 2.0, 4.9, 7.0])
loads = st.fixed_dictionaries(
    {
        "used": st.sampled_from([0, 1, 50, 5_000, 5_050, 9_000]),
        "in_flight": st.integers(0, 40),
        "missed": st.sampled_from([0] * 9 + [1]),
        "refused": st.integers(0, 200),
        "rung": st.sampled_from(["Normal"] * 5 + ["Shed", "Evict"]),
        "gone": st.sampled_from([False] * 9 + [True]),
    }
)
streams = st.lists(st.tuples(pauses, loads), min_size=1, max_size=12)


def reports(load, now):
    """What the one pod says; nothing new for a minute where it is gone."""
    usage = make.tenant_usage(
        "search",
        reserved=load["used"],
        used=load["used"],
        in_flight=load["in_flight"],
        recent=Counts(
            admitted=load["refused"],
            rejected={"kv_pool_contended": load["refused"]},
            guarantee_missed=load["missed"],
        ),
    )
    report = make.report(usage, pool=make.pool_usage(used=load["used"], reserved=load["used"], rung=load["rung"]))
    return make.reported(report, age=make.NOW - now + 60.0 if load["gone"] else make.NOW - now)


class Desk:
    """The statuses of a pool and its quotas as the operator keeps them: looked at every time, written when due."""

    def __init__(self):
        self.observed = make.observed()
        self.written = {}
        self.log = []

    def look(self, load, now):
        seen = replace(self.observed, reports=reports(load, now))
        plan = reconcile(seen, now, make.WALL)
        wanted = {POOL: plan.pool_status, **plan.quota_statuses}
        for name, status in wanted.items():
            stored = self.stored(name)
            if due(stored, status, self.written.get(name, NEVER), now):
                self.written[name] = self.written.get(name, NEVER).again(now)
                self.log.append((name, now, answers(stored) != answers(status)))
                self.store(name, status)
        return wanted

    def stored(self, name):
        if name == POOL:
            return self.observed.pool_status
        return next(each.status for each in self.observed.quotas if each.quota.metadata.name == name)

    def store(self, name, status):
        if name == POOL:
            self.observed = replace(self.observed, pool_status=status)
            return
        self.observed = replace(
            self.observed,
            quotas=tuple(
                replace(each, status=status) if each.quota.metadata.name == name else each
                for each in self.observed.quotas
            ),
        )


def answers(status):
    return {each["type"]: (each["status"], each["reason"]) for each in status.get("conditions", [])}


def played(stream):
    """The desk after the stream, the time, and what came last."""
    desk, now = Desk(), make.NOW
    for pause, load in stream:
        now += pause
        desk.look(load, now)
    return desk, now, stream[-1][1]


def quiet(now):
    """The looks of a while in which nothing happens, until all that waited for its turn has had it."""
    return [now + turn * WRITE_SECONDS / 2 for turn in range(1, 6)]


@given(streams)
def test_no_object_is_written_more_often_than_people_can_read(stream):
    desk, _, _ = played(stream)
    for name in {name for name, _, _ in desk.log}:
        writes = [(at, turned) for each, at, turned in desk.log if each == name]
        gauges = [at for at, turned in writes if not turned]
        times = [at for at, _ in writes]
        assert all(later - at >= WRITE_SECONDS for at in times for later in gauges if later > at)
        assert all(third - first >= WRITE_SECONDS for first, third in zip(times, times[2:], strict=False))


@given(streams)
def test_the_last_state_is_what_stands_there_in_the_end_and_then_nothing_is_written(stream):
    desk, end, last = played(stream)
    for now in quiet(end):
        wanted = desk.look(last, now)
    assert not any(differs(desk.stored(name), status) for name, status in wanted.items())
    before = list(desk.log)
    for now in quiet(quiet(end)[-1]):
        desk.look(last, now)
    assert desk.log == before


@given(streams)
def test_a_condition_that_turns_is_there_at_once_however_lately_a_number_was_written(stream):
    desk, end, last = played(stream)
    for now in quiet(end):
        desk.look(last, now)
    moved = {**last, "gone": False, "used": 0 if last["used"] > 4_000 else 9_000}
    desk.look(moved, now + WRITE_SECONDS)
    wanted = desk.look({**moved, "missed": 1 - last["missed"]}, now + WRITE_SECONDS + 0.1)
    assert all(answers(desk.stored(name)) == answers(status) for name, status in wanted.items())


def test_a_restarted_sidecar_starts_its_counts_again_and_nothing_falls_below_nothing_or_counts_twice():
    first = make.report(make.tenant_usage("search", recent=Counts(admitted=50, rejected={"a": 3}), in_flight=4))
    again = msgspec.structs.replace(
        make.report(make.tenant_usage("search", recent=Counts(admitted=2), in_flight=1)), epoch="next", started_at=9.0
    )
    found = [make.decided(reports=make.reported(report)).quota_statuses["search"] for report in (first, again)]
    assert [(each["recent"], each["inFlight"]) for each in found] == [
        ({"admitted": 50, "rejectedTotal": 3, "rejected": {"a": 3}, "evicted": 0}, 4),
        ({"admitted": 2, "rejectedTotal": 0, "evicted": 0}, 1),
    ]
