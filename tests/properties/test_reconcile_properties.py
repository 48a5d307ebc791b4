"""Reconcile over random histories of a pool: total, idempotent, and never back to an older generation."""

from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

import reconcile_builders as make
from kvquota_api.meta import REVIEWED_ANNOTATION
from kvquota_api.pod_config import decode_config, decode_identity, encode
from kvquota_api.pool_status import ModelPoolStatus
from kvquota_api.tenant_quota import TenantQuotaStatus
from kvquota_api.usage import MAX_BLOCK_TOKENS, MAX_BLOCKS, Counts, EngineRecent, InForce, Refusal, Rejected
from kvquota_operator.reconcile.manifests import config_from_configmap, config_map
from kvquota_operator.reconcile.observed import KeyFound, KeyProblem, PoolClaim, QuotaSeen, ReportSeen, SecretSeen
from kvquota_operator.reconcile.reconcile import reconcile
from kvquota_operator.reconcile.writes import NEVER, due

START = make.observed(secret=SecretSeen(make.TOKEN, make.PEPPER), quotas=(), pods=(), reports={})
RECENT = ("finished", "foreign", "prompt_tokens", "cached_tokens")
NAMES = ("search", "batch", "chat")
QUOTAS = (("q0", "search"), ("q1", "batch"), ("q2", "search"), ("q3", "chat"))
PODS = ("p0", "p1", "p2")
UNKNOWN = {"model__config": {"inline": {"architectures": ["NobodyKnowsThis"], "model_type": "nobody-knows"}}}


def accepted(pool):
    """The pool with the annotation that accepts its plan."""
    metadata = pool.metadata.model_copy(update={"annotations": {REVIEWED_ANNOTATION: make.plan_hash(pool)}})
    return pool.model_copy(update={"metadata": metadata})


POOLS = (
    *(make.pool(),) * 5,
    make.pool(enforcement="Shadow", sidecar__anonymousTenant="chat", tiers=[{"name": "gold", "priority": 5}]),
    make.pool(memory__kvPool={"percent": 20}),
    make.pool(model__maxModelLen=16_384),
    accepted(make.pool(model__kvCacheDtype="fp8")),
    make.pool(memory__kvPool={"percent": 95}),
    make.pool(**UNKNOWN),
    make.unread_pool(),
)
KEYS = tuple(KeyFound(f"kvq-{digit * 4}{'0123456789abcdef' * 4}") for digit in "ab")

naturals = st.integers(0, 40_000) | st.just(2**63 - 1)
shares = st.sampled_from(
    [
        {"percent": 70},
        {"percent": 60},
        {"percent": 40},
        {"percent": "0.5"},
        {"percent": 100},
        {"tokens": 20_000},
        {"tokens": 0},
        {"bytes": "8Gi"},
    ]
)
units = st.fixed_dictionaries({}, optional={"soft": shares, "hard": shares})


def sensible(kv):
    """Whether one object may state this: the same unit with soft above hard is refused before it is stored."""
    soft, hard = kv.get("soft"), kv.get("hard")
    return soft is None or hard is None or soft == hard or set(soft) != set(hard)


quota_specs = st.fixed_dictionaries(
    {},
    optional={
        "tier": st.sampled_from(["gold", "gold", "free", "missing"]),
        "priority": st.integers(0, 1000),
        "scope": st.sampled_from(["Pool", "PerReplica"]),
        "kv": units.filter(sensible),
        "maxConcurrentRequests": st.integers(1, 5),
        "maxContextTokens": st.integers(1, 60_000),
        "enforcement": st.sampled_from(["Enforce", "Shadow"]),
        "identity": st.sampled_from(["k0", "k1", "k2"]).map(make.key_of),
    },
)
counts = st.builds(
    Counts,
    admitted=naturals,
    rejected=st.dictionaries(st.sampled_from("abc"), naturals),
    evicted=naturals,
    guarantee_missed=st.integers(0, 2),
)
refusals = st.none() | st.builds(Refusal, code=st.just("c"), message=st.just("m"), at=st.floats())
in_force = st.builds(
    InForce, generation=st.integers(0, 30), config_digest=st.sampled_from(["", "0" * 64]), source=st.just("File")
)


@st.composite
def reports(draw):
    tenants = [
        make.tenant_usage(
            name,
            reserved=draw(naturals),
            used=draw(naturals),
            over_soft=draw(naturals),
            in_flight=draw(naturals),
            recent=draw(counts),
            refusal=draw(refusals),
        )
        for name in NAMES[: draw(st.integers(0, 3))]
    ]
    return make.report(
        *tenants,
        blocks=draw(st.sampled_from([make.CAP, make.CAP, make.CAP, 9_001, None, 0, 1, MAX_BLOCKS])),
        block_tokens=draw(st.sampled_from([16, 16, 32, None, MAX_BLOCK_TOKENS])),
        pool=make.pool_usage(pressure_percent=draw(st.floats(allow_nan=False)), reserved=draw(naturals)),
        in_force=draw(in_force),
        state=draw(st.sampled_from(["Ready", "Ready", "Down", "Unknown"])),
        aborts_lost=draw(st.sampled_from([None, False, True])),
        recent=draw(st.builds(EngineRecent, **dict.fromkeys(RECENT, st.none() | naturals))),
        rejected=draw(st.none() | st.just(Rejected(generation=1, reason="Invalid", message="m"))),
    )


channel = st.builds(
    ReportSeen,
    report=st.one_of(reports(), reports(), reports(), st.none()),
    received_at=st.sampled_from([make.NOW, make.NOW - 9.0, make.NOW, make.NOW - 60.0]),
    error=st.none() | st.just("timeout"),
)
key_values = st.sampled_from([*KEYS, KeyFound("weak"), KeyProblem("APIKeyNotFound", "create it")])
pod_kinds = st.fixed_dictionaries(
    {
        "ip": st.sampled_from(["10.0.0.1", "10.0.0.1", "10.0.0.1", None]),
        "ready": st.sampled_from([True, True, True, False]),
        "deleting": st.sampled_from([False] * 9 + [True]),
        "governed": st.sampled_from([True] * 9 + [False]),
        "others": st.sampled_from([()] * 9 + [(PoolClaim("2020-01-01T00:00:00Z", "elder"),)]),
    }
)


@st.composite
def surroundings(draw):
    """Everything but what the operator itself stores."""
    quotas, invalid = [], []
    for name, tenant in QUOTAS[: draw(st.integers(1, 4))]:
        if draw(st.integers(0, 5)) == 5:
            invalid.append(make.unread(name))
        else:
            quotas.append(make.quota(name, age=draw(st.integers(0, 2)), tenant=tenant, **draw(quota_specs)))
    pods = draw(st.sampled_from([PODS[:2], PODS[1:], PODS, PODS[:1], ()]))
    reached = draw(st.sampled_from([PODS, PODS, PODS[1:], ()]))
    return {
        "pool": draw(st.sampled_from(POOLS)),
        "quotas": make.seen(*quotas),
        "invalid": tuple(invalid),
        "keys": {(key, "key"): draw(key_values) for key in ("k0", "k1")},
        "pods": tuple(make.pod(name, **draw(pod_kinds)) for name in pods),
        "reports": {f"uid-{name}": draw(channel) for name in reached},
    }


def moved_on(before, fields):
    """The next thing that happens around a pool: what the operator stored is still there."""
    statuses = {each.quota.metadata.name: each.status for each in before.quotas}
    statuses |= {each.name: each.status for each in before.invalid}
    after = replace(before, **fields)
    return replace(
        after,
        quotas=tuple(QuotaSeen(each.quota, statuses.get(each.quota.metadata.name, {})) for each in after.quotas),
        invalid=tuple(replace(each, status=statuses.get(each.name, {})) for each in after.invalid),
    )


histories = st.lists(surroundings(), min_size=2, max_size=4)


def steps(history):
    """Each moment of a history with its plan, carried out before the next."""
    observed = START
    for fields in history:
        observed = moved_on(observed, fields)
        plan = reconcile(observed, make.NOW, make.WALL)
        yield observed, plan
        observed = make.carried_out(observed, plan)


def newest_seen(observed, uid):
    """The newest generation that was seen of one pod."""
    stored = observed.configs[uid].generation if uid in observed.configs else 0
    seen = observed.reports.get(uid)
    return max(stored, seen.report.in_force.generation if seen is not None and seen.report is not None else 0)


def every_pod_asked(observed):
    """The same once no pod is awaited: until then an old config may stand beside the keys of newer quotas."""
    silent = {f"uid-{name}": ReportSeen() for name in PODS}
    return replace(observed, reports=silent | dict(observed.reports))


@given(histories)
def test_carried_out_and_decided_again_nothing_changes(history):
    for observed, plan in steps(history):
        again = reconcile(make.carried_out(observed, plan), make.NOW, make.LATER)
        assert again == replace(plan, events=())


@given(histories)
def test_a_generation_never_goes_back(history):
    for observed, plan in steps(history):
        awaited = {uid for uid in observed.configs if uid not in observed.reports}
        for config in plan.configs:
            newest = newest_seen(observed, config.pod.uid)
            stored = observed.configs.get(config.pod.uid)
            assert config.generation >= newest
            if config.pod.uid not in awaited and stored is not None and stored.digest != config.digest:
                assert config.generation > stored.generation


@given(histories)
def test_guarantees_on_every_pod_stay_within_what_shed_leaves(history):
    for observed, plan in steps(history):
        for config in plan.configs:
            seen = observed.reports.get(config.pod.uid)
            if seen is None:
                continue
            measured = None if seen.report is None else seen.report.engine.blocks
            size = config.kv.cap_blocks if measured is None else min(config.kv.cap_blocks, measured)
            usable = max(0, size - config.kv.null_blocks)
            total = sum(share.soft_blocks for share in config.tenants)
            assert total <= usable * config.ladder.shed.enter_percent // 100


@given(histories)
def test_every_document_is_one_that_its_reader_accepts(history):
    for observed, plan in steps(history):
        for config in plan.configs:
            assert decode_config(encode(config)) == config
            assert config_from_configmap(config_map(config)) == config
        assert decode_identity(encode(plan.secret.identity)) == plan.secret.identity
        settled = reconcile(every_pod_asked(observed), make.NOW, make.WALL)
        assert settled.secret == plan.secret
        ids = {share.id for config in settled.configs for share in config.tenants}
        assert not settled.configs or set(plan.secret.identity.api_keys.values()) <= ids


@given(histories)
def test_every_status_is_one_that_its_schema_accepts(history):
    for _, plan in steps(history):
        for model, status in [
            (ModelPoolStatus, plan.pool_status),
            *((TenantQuotaStatus, status) for status in plan.quota_statuses.values()),
        ]:
            read = model.model_validate(status)
            assert read.model_dump(mode="json", by_alias=True, exclude_defaults=True) == status


@given(histories, st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_listed_does_not_matter(history, shuffling):
    for observed, plan in steps(history):
        mixed = {}
        for field in ("quotas", "invalid", "pods"):
            listed = list(getattr(observed, field))
            shuffling.shuffle(listed)
            mixed[field] = tuple(listed)
        assert reconcile(replace(observed, **mixed), make.NOW, make.WALL) == plan


@given(histories)
def test_what_is_stored_needs_no_second_write(history):
    for observed, plan in steps(history):
        stored = make.carried_out(observed, plan)
        again = reconcile(stored, make.NOW, make.LATER)
        assert not due(stored.pool_status, again.pool_status, NEVER, make.NOW)
        assert not any(
            due(plan.quota_statuses[name], again.quota_statuses[name], NEVER, 0.0) for name in again.quota_statuses
        )


@given(histories)
def test_no_secret_is_in_any_status_event_or_config(history):
    secrets = [make.TOKEN, make.PEPPER, *(key.value for key in KEYS)]
    for _, plan in steps(history):
        shown = msgspec.json.encode([plan.configs, plan.pool_status, plan.quota_statuses, list(plan.events)]).decode()
        assert not any(secret in shown for secret in secrets)
