"""The demonstration's own decisions: what it does to engines of any size, and when it has held."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import pytest

from kvquota_api.amounts import Tokens
from kvquota_api.memory.blocks import blocks_for
from kvquota_api.memory.plan import plan_pool
from kvquota_api.usage import EngineUsage, InForce, PoolUsage, UsageReport
from kvquota_api.validation import parse_model_pool
from kvquota_cli.checking import check
from kvquota_cli.demo.display import PlainDisplay
from kvquota_cli.demo.going_on import Started, going_on
from kvquota_cli.demo.scenario import (
    FLOOD,
    STEADY,
    EngineFacts,
    Scenario,
    Setting,
    UnfitEngineError,
    as_yaml,
    manifests,
    model_pool,
    scenario_of,
)
from kvquota_cli.demo.tally import Act, Refused, Tally, percentile
from kvquota_cli.demo.telling import is_over, tells_of
from kvquota_cli.demo.verdict import Leftover, Outcome, counts_of, leftover_of, summary
from kvquota_cli.errors import CliError, ExitCode, told_by
from kvquota_cli.manifests.documents import read_documents
from kvquota_cli.manifests.last_good import InForce as Files
from kvquota_cli.tables.table import Table
from kvquota_cli.wrapping import wrapped
from kvquota_fakeengine.__main__ import read_options

SETTING = Setting("ns", {STEADY: "kvq-" + "0123456789abcdef" * 4, FLOOD: "kvq-" + "fedcba9876543210" * 4})
CLEAN = Leftover(reserved_blocks=0, unattributed_blocks=0, engine_blocks=0, engine_running=0)
HARD = "tenant_kv_quota_exceeded"

ENGINES = [
    pytest.param(EngineFacts("m", 1025, 16, 4096), id="the fake engine"),
    pytest.param(EngineFacts("m", 512, 128, 2048), id="a small engine on the CPU"),
    pytest.param(EngineFacts("m", 18_432, 16, 32_768), id="a third of an 80 GiB card"),
    pytest.param(EngineFacts("m", 66_000, 16, 8192), id="a large pool of short requests"),
    pytest.param(EngineFacts("m", 400_000, 16, 4096), id="a pool that 256 clients cannot fill"),
    pytest.param(EngineFacts("m", 258, 16, 4096), id="the smallest that is taken"),
]


def pool_of(scenario: Scenario) -> tuple[int, Callable[[int], int]]:
    plan = plan_pool(parse_model_pool(model_pool(scenario, SETTING, "Enforce")))
    return plan.usable_blocks, lambda tokens: blocks_for(plan.groups, Tokens(tokens))


@pytest.mark.parametrize("facts", ENGINES)
def test_the_flood_passes_its_hard_and_no_request_of_it_is_refused_for_good(facts: EngineFacts) -> None:
    scenario = scenario_of(facts)
    usable, blocks = pool_of(scenario)
    flood = scenario.flood
    one = blocks(flood.words + flood.output_tokens)
    hard = min(usable, -(-scenario.flood_hard_tokens // facts.block_tokens))
    assert one <= hard < one * flood.clients
    assert flood.words + flood.output_tokens <= facts.max_tokens
    assert usable - one >= usable * 0.2  # guaranteeReservePercent, which no over-soft request may touch


@pytest.mark.parametrize("facts", ENGINES)
def test_what_steady_sends_at_any_time_is_within_its_soft(facts: EngineFacts) -> None:
    scenario = scenario_of(facts)
    usable, blocks = pool_of(scenario)
    steady = scenario.steady
    template = 100  # tokens that a chat template may add
    assert steady.clients * blocks(steady.words + steady.output_tokens + template) <= usable // 4


@pytest.mark.parametrize("facts", ENGINES)
def test_the_plan_is_as_large_as_the_engine_came_up(facts: EngineFacts) -> None:
    plan = plan_pool(parse_model_pool(model_pool(scenario_of(facts), SETTING, "Shadow")))
    assert (plan.cap_blocks, plan.block_tokens) == (facts.blocks, facts.block_tokens)


@pytest.mark.parametrize("facts", ENGINES)
async def test_the_manifests_of_the_demonstration_are_good(facts: EngineFacts) -> None:
    text = as_yaml(manifests(scenario_of(facts), SETTING, "Enforce"))
    verdict = await check(Files(read_documents(text, "demo.yaml")), "default", datetime(2026, 11, 1, tzinfo=UTC))
    assert verdict.findings == ()
    assert verdict.checked == {"Secret": 2, "ModelPool": 1, "TenantQuota": 2}


def test_an_engine_too_small_to_show_anything_is_refused_with_a_size() -> None:
    with pytest.raises(UnfitEngineError, match=r"holds 4080 tokens, too few .* at least 4096"):
        scenario_of(EngineFacts("m", 256, 16, 2048))


def tally(*, answered: tuple[int, int] = (3, 3), refused: Mapping[str, int] | None = None, cut: int = 0) -> Tally:
    told = Tally()
    for _ in range(answered[0]):
        told.answer("Counted", 2.0)
    for number in range(answered[1]):
        told.answer("Enforced", 0.1 * (number + 1))
    for code, count in (refused or {}).items():
        for number in range(count):
            told.refuse("Enforced", Refused(429, code, f"sentence {number} of {code}"))
    told.cut = cut
    told.sent = told.answers + told.refusals + cut
    return told


def outcome(steady: Tally | None = None, flood: Tally | None = None, leftover: Leftover = CLEAN) -> Outcome:
    return Outcome({STEADY: steady or tally(), FLOOD: flood or tally(refused={HARD: 5}, cut=2)}, leftover)


def test_it_held_when_every_claim_did() -> None:
    assert [claim.held for claim in outcome().claims] == [True] * 5
    assert outcome().held


@pytest.mark.parametrize(
    ("spoilt", "claim"),
    [
        pytest.param(outcome(steady=tally(answered=(0, 3))), 0, id="steady had no answer while quotas only counted"),
        pytest.param(outcome(steady=tally(answered=(3, 0))), 0, id="steady had no answer while quotas were enforced"),
        pytest.param(outcome(steady=tally(refused={"kv_pool_exhausted": 1})), 1, id="steady was refused once"),
        pytest.param(outcome(flood=tally()), 2, id="flood was never refused"),
        pytest.param(
            outcome(flood=tally(refused={"kv_pool_contended": 9})), 2, id="flood was refused for other reasons"
        ),
        pytest.param(outcome(flood=tally(answered=(3, 0), refused={HARD: 1})), 3, id="flood got nothing at all"),
        pytest.param(outcome(leftover=Leftover(1, 0, 0, 0)), 4, id="a block stayed reserved"),
        pytest.param(outcome(leftover=Leftover(0, 1, 0, 0)), 4, id="a block belongs to nobody"),
        pytest.param(outcome(leftover=Leftover(0, 0, 1, 0)), 4, id="a block stayed in the engine"),
        pytest.param(outcome(leftover=Leftover(0, 0, 0, 1)), 4, id="a request stayed in the engine"),
        pytest.param(outcome(leftover=Leftover(0, 0, None, 0)), 4, id="nobody saw the engine's blocks"),
    ],
)
def test_one_claim_that_did_not_hold_spoils_it(spoilt: Outcome, claim: int) -> None:
    assert [index for index, each in enumerate(spoilt.claims) if not each.held] == [claim]
    assert not spoilt.held
    assert [line for line in summary(spoilt) if line.startswith("FAILED")] == [
        f"FAILED    {spoilt.claims[claim].sentence}"
    ]


def test_the_summary_has_what_was_sent_what_came_of_it_and_the_very_sentences() -> None:
    assert summary(outcome())[:6] == (
        "steady    6 sent, 6 answered, 0 refused",
        "          first token in act 1: p50 2.00 s, p95 2.00 s; in act 2: p50 0.20 s, p95 0.30 s",
        "flood     13 sent, 6 answered, 5 refused, 2 cut when an act ended",
        "          first token in act 1: p50 2.00 s, p95 2.00 s; in act 2: p50 0.20 s, p95 0.30 s",
        f"          5 x 429 {HARD}, such as:",
        f'            "sentence 4 of {HARD}"',
    )


def test_a_refusal_in_a_stream_and_a_broken_connection_are_told_apart() -> None:
    told = tally()
    told.refuse("Enforced", Refused(200, HARD, "ended"))
    told.refuse("Counted", Refused(0, "ServerDisconnectedError", "gone"))
    lines = [line.strip() for line in summary(outcome(steady=told))]
    assert f"1 x in a stream that had begun, {HARD}, such as:" in lines
    assert "1 x no answer, ServerDisconnectedError in act 1, such as:" in lines


def report(**engine: int | None) -> UsageReport:
    pool = PoolUsage(usable=100, free=90, reserved=3, used=2, unattributed=7, pressure_percent=10.0)
    return UsageReport(
        epoch="e",
        sequence=1,
        started_at=0.0,
        in_force=InForce(),
        engine=EngineUsage(**engine),
        pool=pool,  # type: ignore[arg-type]  # a pool as its fields
    )


def test_what_is_left_comes_from_ledger_and_engine_and_waiting_counts_as_running() -> None:
    assert leftover_of(report(used_blocks=5, running=1, waiting=2)) == Leftover(3, 7, 5, 3)


def test_what_the_engine_does_not_say_is_unknown_and_not_0() -> None:
    assert leftover_of(report(running=0)) == Leftover(3, 7, None, None)


@pytest.mark.parametrize(
    ("values", "percent", "found"),
    [([], 50, None), ([5.0], 95, 5.0), ([3.0, 1.0, 2.0], 50, 2.0), (list(range(1, 101)), 95, 95), ([1, 2], 50, 1)],
)
def test_percentiles_are_of_the_nearest_rank(values: list[float], percent: float, found: float | None) -> None:
    assert percentile(values, percent) == found


def test_a_plain_display_prints_every_fifth_look_and_the_end_of_an_act(capsys: pytest.CaptureFixture[str]) -> None:
    table, tallies = Table(("NAME", "STATE"), (("q", "Ready"),)), {STEADY: tally()}
    with PlainDisplay() as display:
        for _ in range(6):
            display.show(table, tallies, telling=True)
        display.conclude(table, tallies)
    block = "NAME   STATE\nq      Ready\nsteady: 6 sent, 6 answered, 0 refused\n\n"
    assert capsys.readouterr().out == 2 * block


def test_a_plain_display_prints_no_table_that_tells_of_something_else(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(6):
        PlainDisplay().show(Table(("NAME",), ()), {}, telling=False)
    display = PlainDisplay()
    for telling in (*[False] * 7, True, True):
        display.show(Table(("NAME",), ()), {}, telling=telling)
    assert capsys.readouterr().out == "NAME\n\n"


def test_what_came_of_all_requests_sums_to_what_was_sent() -> None:
    told = tally(refused={HARD: 5}, cut=2)
    told.sent += 4
    assert counts_of(told) == "17 sent, 6 answered, 5 refused, 2 cut when an act ended, 4 running"


def row(name: str, used: str, in_flight: str) -> tuple[str, ...]:
    return (name, used, in_flight)


@pytest.mark.parametrize(
    ("act", "flood", "steady", "tells"),
    [
        pytest.param("Counted", ("0", "0"), ("0", "0"), False, id="a status from before the flood"),
        pytest.param("Counted", ("", ""), ("", ""), False, id="no status yet"),
        pytest.param("Counted", ("900", "3"), ("0", "3"), True, id="steady waits behind the flood"),
        pytest.param("Enforced", ("900", "3"), ("0", "3"), False, id="steady was only just admitted"),
        pytest.param("Enforced", ("900", "3"), ("96", "3"), True, id="both run"),
        pytest.param("Enforced", ("900", "3"), ("0", "0"), True, id="steady pauses"),
        pytest.param("Enforced", ("0", "3"), ("96", "3"), False, id="the flood holds nothing yet"),
    ],
)
def test_when_a_table_tells_of_its_act(act: Act, flood: tuple[str, str], steady: tuple[str, str], tells: bool) -> None:
    rows = (row(FLOOD, *flood), row(STEADY, *steady))
    assert tells_of(act, Table(("NAME", "USED", "INFLIGHT"), rows)) is tells


@pytest.mark.parametrize(("used", "in_flight", "over"), [("0", "0", True), ("0", "3", False), ("16", "0", False)])
def test_the_last_table_has_nothing_running(used: str, in_flight: str, over: bool) -> None:
    rows = (row(FLOOD, "0", "0"), row(STEADY, used, in_flight))
    assert is_over(Table(("NAME", "USED", "INFLIGHT"), rows)) is over


def test_what_to_do_next_runs_as_it_is_printed_from_where_the_program_was_started() -> None:
    lines = going_on(Started("/repo/.venv/bin/kvquota", "/repo/.venv/bin/python", "/repo", examples=True), 200)
    assert [line.strip() for line in lines if line.startswith("  ")] == [
        ".venv/bin/python -m kvquota_fakeengine --port 8000 --model llama-3.1-8b-instruct"
        " --num-gpu-blocks-override 18432 --block-size 16 --max-model-len 32768",
        ".venv/bin/kvquota serve --manifests examples/ --engine http://127.0.0.1:8000",
        ".venv/bin/kvquota demo --kubeconfig ~/.kube/config",
        ".venv/bin/kvquota check examples/",
    ]


def test_a_program_that_a_module_started_is_called_as_a_module_and_its_long_lines_can_be_pasted() -> None:
    lines = going_on(Started("/lib/kvquota_cli/__main__.py", "/usr/bin/python3", "/repo", examples=False), 80)
    joined = "\n".join(lines).replace(" \\\n", " ")
    assert "  /usr/bin/python3 -m kvquota_cli check DIR" in joined.splitlines()
    assert max(map(len, lines)) <= 80
    fake = next(line for line in joined.splitlines() if "kvquota_fakeengine" in line)
    assert read_options(fake.split()[3:]).settings.blocks == 18_432


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        pytest.param("", [""], id="nothing"),
        pytest.param(
            "flood     one two-three four", ["flood     one", "          two-three", "          four"], id="label"
        ),
        pytest.param(
            "  held    one two three four", ["  held    one two", "          three four"], id="indented label"
        ),
        pytest.param("a-word-that-is-too-long-to-fit", ["a-word-that-is-too-long-to-fit"], id="a long word"),
    ],
)
def test_prose_is_broken_between_words_below_where_its_text_begins(line: str, lines: list[str]) -> None:
    assert wrapped(line, 20) == lines


def test_of_several_failures_at_once_the_first_foreseen_one_is_told() -> None:
    told = CliError("a sentence", ExitCode.PROBLEM)
    nested = BaseExceptionGroup("outer", [ExceptionGroup("inner", [told]), CliError("another")])
    assert told_by(nested) is told


def test_a_failure_beside_a_bug_is_a_bug() -> None:
    assert told_by(ExceptionGroup("both", [CliError("a sentence"), ValueError("a bug")])) is None
    assert told_by(ExceptionGroup("bug", [ValueError("a bug")])) is None
