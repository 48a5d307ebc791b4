"""SGLang's start-up logs: every figure with its line."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from kvquota_api.memory.startup_log import LogFacts, Size, kv_memory, parse_log
from kvquota_api.memory.startup_log.facts import CacheFacts, RankFacts, Refusal
from kvquota_api.memory.startup_log.figures import Count, Word

LOGS = Path(__file__).parents[2] / "data" / "startup_logs"
HALF_CENT = -(-(2**30) // 200)  # bytes: how far a GB with two decimals may be off


def facts_of(name: str) -> LogFacts:
    return parse_log((LOGS / name).read_text())


def gib(number: str, line: int) -> Size:
    return Size(round(Fraction(number) * 2**30), HALF_CENT, line)


def both(first: str, second: str, line: int) -> Size:
    return Size(gib(first, line).bytes + gib(second, line).bytes, 2 * HALF_CENT, line)


FACTS = {
    "sglang-0.4.6-dense.log": (
        (
            RankFacts(
                "TP0",
                free=gib("78.37", 3),
                weights=gib("55.57", 6),
                free_after=gib("14.10", 10),
                graphs=gib("2.66", 12),
                tokens=Count(367404, 13),
            ),
            RankFacts("TP1", free=gib("78.20", 4), weights=gib("55.57", 7), free_after=gib("13.93", 11)),
        ),
        (
            CacheFacts("TP0", both("8.23", "8.23", 8), tokens=367404),
            CacheFacts("TP1", both("8.23", "8.23", 9), tokens=367404),
        ),
        both("8.23", "8.23", 8),
    ),
    "sglang-0.5.6-mla-mtp.log": (
        (
            RankFacts(
                "DP0 TP0 EP0",
                free=gib("177.20", 2),
                weights=Size(gib("84.10", 3).bytes + gib("1.30", 3).bytes, 2 * HALF_CENT, 3),
                free_after=gib("51.30", 5),
                graphs=Size(gib("1.11", 9).bytes + gib("0.15", 9).bytes, 2 * HALF_CENT, 9),
                tokens=Count(975424, 11),
            ),
        ),
        (
            CacheFacts("DP0 TP0 EP0", gib("43.67", 4), tokens=975424, key_type="float8_e4m3fn"),
            CacheFacts("DP0 TP0 EP0", gib("0.72", 8), tokens=975424, key_type="float8_e4m3fn"),
        ),
        both("43.67", "0.72", 4),
    ),
    "sglang-hybrid.log": (
        (RankFacts("TP0", free=gib("94.50", 1), weights=gib("14.76", 2), tokens=Count(1557504, 5)),),
        (
            CacheFacts("TP0", both("0.00", "0.10", 3), sequences=8),
            CacheFacts("TP0", both("4.46", "4.46", 4), tokens=1557504),
        ),
        Size(both("4.46", "4.46", 3).bytes + gib("0.10", 3).bytes, 4 * HALF_CENT, 3),
    ),
    "sglang-sliding.log": (
        (RankFacts("TP0", allocated_kv=gib("77.63", 5)),),
        (
            CacheFacts("TP0", both("41.76", "27.84", 3), tokens=1496958),
            CacheFacts("TP0", both("4.82", "3.21", 4), tokens=1496958),
        ),
        Size(both("41.76", "27.84", 3).bytes + both("4.82", "3.21", 3).bytes, 4 * HALF_CENT, 3),
    ),
    "sglang-early.log": (
        (RankFacts(None, free=gib("23.33", 1), free_after=gib("3.10", 4), tokens=Count(40960, 5)),),
        (CacheFacts(None, both("2.50", "2.50", 3)),),
        both("2.50", "2.50", 3),
    ),
    "sglang-refused.log": ((), (), None),
}


@pytest.mark.parametrize(("name", "expected"), FACTS.items(), ids=FACTS)
def test_each_process_has_its_figures_and_caches(
    name: str, expected: tuple[tuple[RankFacts, ...], tuple[CacheFacts, ...], Size | None]
) -> None:
    facts = facts_of(name)
    assert (facts.ranks, facts.caches, kv_memory(facts)) == expected
    assert (facts.engine, facts.starts, facts.device) == ("SGLang", 1, None)


ARCHITECTURES = {
    "sglang-early.log": ["LlamaForCausalLM"],
    "sglang-hybrid.log": ["NemotronHForCausalLM"],
    "sglang-0.5.6-mla-mtp.log": ["DeepseekV32ForCausalLM", "DeepseekV3ForCausalLMNextN"],
    "sglang-sliding.log": [],
}


@pytest.mark.parametrize(("name", "loaded"), ARCHITECTURES.items(), ids=ARCHITECTURES)
def test_what_was_loaded_is_read_in_its_order(name: str, loaded: list[str]) -> None:
    assert [each.value for each in facts_of(name).settings if each.name == "architecture"] == loaded


def test_the_version_is_read_where_it_is_printed() -> None:
    assert (facts_of("sglang-early.log").version, facts_of("sglang-hybrid.log").version) == (Word("0.2.13", 6), None)


REFUSED = {
    "weights alone": "ValueError: Loaded weights leave no GPU memory for the KV cache under"
    " --mem-fraction-static=0.88.",
    "the earlier words": "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_no_room_for_the_cache_is_a_refusal(text: str) -> None:
    facts = parse_log(f"[2026-02-11 11:00:00 TP3] Scheduler hit an exception:\n{text}\n{text}\n")
    assert (facts.engine, facts.refusals) == ("SGLang", (Refusal("NoMemoryForCache", 2),))


def test_a_second_start_in_one_log_counts_alone() -> None:
    one = "[2025-07-02 09:00:00] server_args=ServerArgs(model_path='a', tp_size=4)\n"
    two = "[2025-07-02 09:10:00] server_args=ServerArgs(model_path='a', tp_size=2)\n"
    facts = parse_log(one + "[2025-07-02 09:01:41 TP0] Memory pool end. avail mem=14.10 GB\n" + two)
    assert (facts.starts, facts.ranks, facts.setting("tp_size")) == (2, (), facts.settings[-1])
