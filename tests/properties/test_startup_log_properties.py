"""Reading a log: no text makes it fail."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.memory.cache_plan import CacheGroup, CachePlan
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.startup_log import PlannedMemory, compare, facts_to_inputs, kv_memory, parse_log

LOGS = tuple(
    path.read_text(errors="replace")
    for path in sorted((Path(__file__).parents[1] / "data" / "startup_logs").glob("*.log"))
)
LINES = tuple(line for log in LOGS for line in log.splitlines(keepends=True))
WORDS = tuple({word for line in LINES for word in line.split() if len(word) < 40})
TORN = st.lists(st.sampled_from(LINES), max_size=60).map("".join)
SPOKEN = st.lists(st.sampled_from(WORDS), max_size=200).flatmap(
    lambda words: st.sampled_from((" ", "\n", "\r\n", "", "  ", "\x1b[0m")).map(lambda between: between.join(words))
)

PLAN = CachePlan(
    blocks=1224,
    null_blocks=1,
    block_tokens=16,
    bytes_per_token=131_072,
    bytes_per_block=2**21,
    kv_bytes=1224 * 2**21,
    tokens=19_584,
    logged_tokens=19_584,
    concurrency=Fraction(1224, 64),
    max_model_len=1024,
    min_bytes=65 * 2**21,
    groups=(CacheGroup("Full", 32, 2**21, LayerGroup(kind="Full", block_tokens=16)),),
)
MEMORY = PlannedMemory(card=2**36, weights=2**33, activation=2**30, non_torch=2**28, graphs=2**29)


@st.composite
def cut(draw: st.DrawFn) -> str:
    """A real log from anywhere to anywhere."""
    log = draw(st.sampled_from(LOGS))
    start, end = sorted((draw(st.integers(0, len(log))), draw(st.integers(0, len(log)))))
    return log[start:end]


def read(text: str) -> None:
    """Everything that a reader of a log asks for."""
    facts = parse_log(text)
    said = facts_to_inputs(facts)
    assert facts.starts >= 1
    assert (facts.engine is None) == (said == {})
    assert facts.engine is None or EngineInputs(**said).engine == facts.engine
    budget = kv_memory(facts)
    assert budget is None or budget.rounding >= 0
    inputs = EngineInputs(**said) if said else None
    found = compare(facts, PLAN, inputs, MEMORY)
    assert len({each.subject for each in found}) == len(found)
    assert all(each.cause is None or each.verdict == "Different" for each in found)
    lines = text.count("\n") + 1
    assert all(1 <= each.line <= lines for each in (*facts.settings, *facts.notices, *facts.refusals))


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    read(text)


@given(st.binary())
def test_any_bytes_are_read(raw: bytes) -> None:
    read(raw.decode(errors="replace"))


@given(TORN)
def test_shuffled_lines_of_real_logs_are_read(text: str) -> None:
    read(text)


@given(SPOKEN)
def test_shuffled_words_of_real_logs_are_read(text: str) -> None:
    read(text)


@given(cut())
def test_cut_logs_are_read(text: str) -> None:
    read(text)


@given(cut(), st.text(max_size=40), st.integers(0, 200))
def test_a_log_with_something_in_its_middle_is_read(log: str, other: str, at: int) -> None:
    read(log[:at] + other + log[at:])


@given(st.sampled_from(LOGS))
def test_colours_and_line_ends_change_nothing_but_themselves(log: str) -> None:
    assert parse_log(log.replace("GPU", "\x1b[32mGPU\x1b[0m")) == parse_log(log)
