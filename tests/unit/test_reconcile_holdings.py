"""What pods may hold: by copies, by reports, and by what nobody knows."""

from dataclasses import replace

import msgspec
import pytest

import reconcile_builders as make
from kvquota_api.amounts import Blocks
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import MAX_TENANTS, EarlierShare, KvPlan, PodConfig, TenantShare
from kvquota_api.usage import InForce
from kvquota_operator.planning.holding import NOTHING, UNLIMITED, Holding, Holdings
from kvquota_operator.reconcile.holdings import earlier_shares, holdings_of
from kvquota_operator.reconcile.pods import LivePod
from kvquota_operator.reconcile.reconcile import reconcile

SEARCH = "inference/search"
USABLE = Blocks(1_000)
KV = make.decided().configs[0].kv
OF_HALF_THE_MEMORY = msgspec.structs.replace(KV, bytes_per_block=KV.bytes_per_block // 2)
OF_HALF_THE_TOKENS = msgspec.structs.replace(
    KV, block_tokens=8, groups=(LayerGroup(kind="Full", block_tokens=8),), bytes_per_block=KV.bytes_per_block * 3
)
ANY = Holding(USABLE, UNLIMITED, USABLE, UNLIMITED)


def holding(blocks: int, sequences: int, given: int = 100) -> Holding:
    """Of a pod whose newest config gives it `given` blocks and, if any, 8 sequences."""
    return Holding(Blocks(blocks), sequences, Blocks(given), 8 if given else 0)


def share(hard: int, sequences: int | None = 8, *, tenant: str = SEARCH, whole: int | None = 900) -> TenantShare:
    return TenantShare(
        id=tenant,
        quota=tenant.partition("/")[2],
        priority=0,
        soft_blocks=0,
        hard_blocks=hard,
        max_concurrent_requests=sequences,
        whole_hard_blocks=whole,
    )


def copy(hard: int, *, generation: int = 5, earlier: tuple[EarlierShare, ...] = ()) -> PodConfig:
    """A durable copy; its digest is its hard and generation, so that a test can name it."""
    (config,) = make.decided().configs
    return msgspec.structs.replace(
        config, generation=generation, digest=f"{generation} {hard}", tenants=(share(hard),), earlier=earlier
    )


def live(
    generation: int = 0,
    digest: str = "",
    *,
    source: str = "Channel",
    mounts: bool = True,
    reserved: int | None = None,
) -> LivePod:
    """A pod that reports this config in force; without a generation it reports none."""
    in_force = InForce(generation=generation, config_digest=digest, source=source)
    usages = () if reserved is None else (make.tenant_usage("search", reserved=reserved, in_flight=3),)
    seen = replace(make.pod(), config_map="kvq-" + "0" * 32 if mounts else None)
    return LivePod(seen, make.report(*usages, in_force=in_force), fresh=True, asked=True, awaited=False, error=None)


SILENT = LivePod(make.pod(), None, fresh=False, asked=True, awaited=False, error="timeout")
BEFORE = EarlierShare(id=SEARCH, hard_blocks=400, max_concurrent_requests=20)
ENDLESS = EarlierShare(id=SEARCH, hard_blocks=40)


@pytest.mark.parametrize(
    ("pod", "durable", "attempt", "expected"),
    [
        pytest.param(live(), None, None, NOTHING, id="a new pod: nothing"),
        pytest.param(SILENT, copy(100), None, holding(100, 8), id="a silent pod: what its copy says"),
        pytest.param(SILENT, copy(0), None, NOTHING, id="a hard of 0 lets nothing run"),
        pytest.param(SILENT, copy(100, earlier=(BEFORE,)), None, holding(400, 20), id="and what was before"),
        pytest.param(SILENT, copy(100, earlier=(ENDLESS,)), None, holding(100, UNLIMITED), id="without limit"),
        pytest.param(
            live(4, "4 400"),
            copy(100, earlier=(BEFORE,)),
            None,
            holding(400, 20),
            id="the pod has the one before",
        ),
        pytest.param(
            live(5, "5 100"),
            copy(100, earlier=(BEFORE,)),
            None,
            holding(400, 20),
            id="the pod has it by the channel, and would find another one after a restart",
        ),
        pytest.param(
            live(5, "5 100", source="File"),
            copy(100, earlier=(BEFORE,)),
            None,
            holding(100, 8),
            id="the pod has it from its volume",
        ),
        pytest.param(
            live(5, "5 100", mounts=False),
            copy(100, earlier=(BEFORE,)),
            None,
            holding(100, 8),
            id="the pod has it and mounts none: after a restart it has nothing",
        ),
        pytest.param(
            live(5, "5 100", source="File", reserved=250),
            copy(100, earlier=(BEFORE,)),
            None,
            holding(250, 8),
            id="its work holds more than it has now",
        ),
        pytest.param(
            live(reserved=5_000), None, None, Holding(USABLE, 3), id="no pod holds more than it has, whatever it says"
        ),
        pytest.param(SILENT, copy(100), copy(300, generation=6), holding(300, 8), id="a copy on its way"),
        pytest.param(live(6, "6 300"), copy(100), copy(300, generation=6), holding(300, 8), id="had"),
        pytest.param(live(5, "other"), copy(100), None, ANY, id="another content, the same number"),
        pytest.param(live(9, "9 1"), copy(100), None, ANY, id="a newer one than its copy"),
        pytest.param(live(9, "9 1"), None, None, ANY, id="its copy is gone"),
    ],
)
def test_what_a_pod_may_hold(
    pod: LivePod, durable: PodConfig | None, attempt: PodConfig | None, expected: Holding
) -> None:
    assert holdings_of(pod, durable, attempt, KV, USABLE).of(SEARCH) == expected


@pytest.mark.parametrize(
    ("kv", "expected"),
    [
        pytest.param(KV, holding(300, 8, given=100), id="its own plan"),
        pytest.param(OF_HALF_THE_MEMORY, holding(600, 8, given=100), id="blocks of half the memory: twice as many"),
        pytest.param(OF_HALF_THE_TOKENS, holding(600, 8, given=33), id="blocks of half the tokens: twice as many"),
    ],
)
def test_a_copy_of_another_plan_holds_the_most_that_its_blocks_may_be_and_gives_the_least(
    kv: KvPlan, expected: Holding
) -> None:
    earlier = copy(100, earlier=(EarlierShare(id=SEARCH, hard_blocks=300, max_concurrent_requests=8),))
    assert holdings_of(SILENT, earlier, None, kv, USABLE).of(SEARCH) == expected


@pytest.mark.parametrize(
    ("holdings", "shares", "expected"),
    [
        pytest.param(Holdings(), (share(100),), (), id="nothing was held"),
        pytest.param(Holdings({SEARCH: Holding(Blocks(100), 8)}), (share(100),), (), id="as much as before"),
        pytest.param(
            Holdings({SEARCH: Holding(Blocks(100), 8)}),
            (share(60),),
            (EarlierShare(id=SEARCH, hard_blocks=100, max_concurrent_requests=8),),
            id="less memory",
        ),
        pytest.param(
            Holdings({SEARCH: Holding(Blocks(100), UNLIMITED)}),
            (share(100),),
            (EarlierShare(id=SEARCH, hard_blocks=100),),
            id="fewer sequences",
        ),
        pytest.param(
            Holdings({SEARCH: Holding(Blocks(100), 8)}),
            (),
            (EarlierShare(id=SEARCH, hard_blocks=100, max_concurrent_requests=8),),
            id="a tenant that is gone",
        ),
        pytest.param(
            Holdings(any_tenant=ANY),
            (share(100), share(70, tenant="inference/each", whole=None)),
            (EarlierShare(id=SEARCH, hard_blocks=1_000),),
            id="nobody knows: each part of a whole, and nothing else",
        ),
    ],
)
def test_what_a_config_takes_back(
    holdings: Holdings, shares: tuple[TenantShare, ...], expected: tuple[EarlierShare, ...]
) -> None:
    assert earlier_shares(holdings, shares) == expected


def test_what_is_remembered_is_bounded_and_the_largest_stay() -> None:
    held = {f"inference/t{number}": Holding(Blocks(number), 1) for number in range(MAX_TENANTS + 5)}
    found = earlier_shares(Holdings(held), ())
    assert (len(found), found[0].hard_blocks, found[-1].hard_blocks) == (MAX_TENANTS, MAX_TENANTS + 4, 5)


def test_what_is_taken_back_is_given_elsewhere_once_the_pod_lets_go_of_it() -> None:
    """One pod has it all, a second one joins."""
    quotas = make.seen(make.quota("search", scope="Pool", kv={"hard": {"tokens": 16_000}}, maxContextTokens=160))
    one = replace(make.pod("a"), config_map="kvq-" + "a" * 32)
    before = make.observed(quotas=quotas, pods=(one,), reports=make.reported(make.report(), name="a"))
    settled = make.carried_out(before, reconcile(before, make.NOW, make.WALL))
    both = replace(settled, pods=(one, make.pod("b")))
    stages = []
    for source in ("Channel", "File"):
        plan = reconcile(both, make.NOW, make.WALL)
        first, second = plan.configs
        stages.append((make.hards(first)["search"], first.earlier, make.hards(second)["search"]))
        held = make.in_force(first)
        both = make.carried_out(both, plan)
        report = make.report(in_force=msgspec.structs.replace(held, source=source))
        both = replace(both, reports=make.reported(report, name="a") | make.reported(make.report(), name="b"))
    final = reconcile(both, make.NOW, make.WALL).configs
    was = EarlierShare(id=SEARCH, hard_blocks=1_000)
    assert stages == [(500, (was,), 0), (500, (was,), 0)]
    assert [make.hards(config)["search"] for config in final] == [500, 500]
