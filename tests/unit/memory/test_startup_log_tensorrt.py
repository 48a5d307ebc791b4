"""TensorRT-LLM's start-up logs, of the C++ runtime and of the PyTorch backend."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from kvquota_api.memory.startup_log import LogFacts, Size, kv_memory, parse_log
from kvquota_api.memory.startup_log.facts import RankFacts, Setting
from kvquota_api.memory.startup_log.figures import Count, Word

LOGS = Path(__file__).parents[2] / "data" / "startup_logs"


def facts_of(name: str) -> LogFacts:
    return parse_log((LOGS / name).read_text())


def amount(number: str, unit: int, line: int) -> Size:
    return Size(round(Fraction(number) * unit), -(-unit // 200), line)


def gib(number: str, line: int) -> Size:
    return amount(number, 2**30, line)


def mib(number: str, line: int) -> Size:
    return amount(number, 2**20, line)


FACTS = {
    "tensorrt-llm-0.13.log": (
        Word("0.13.0.dev2024082000", 1),
        (
            RankFacts(
                None,
                total=gib("39.39", 15),
                weights=Size(14718 * 2**20, 2**20, 10),
                activation=mib("832.01", 11),
                available_kv=gib("21.89", 15),
                allocated_kv=gib("19.72", 18),
                compute=mib("134.28", 14),
                blocks=Count(631, 16),
                host_blocks=Count(0, 16),
                block_tokens=Count(64, 17),
                tokens=Count(40384, 18),
            ),
        ),
        gib("19.72", 18),
    ),
    "tensorrt-llm-old.log": (
        None,
        (
            RankFacts("rank 0", blocks=Count(631, 1), block_tokens=Count(64, 2), tokens=Count(40384, 3)),
            RankFacts("rank 1", blocks=Count(630, 4)),
        ),
        None,
    ),
    "tensorrt-llm-1.0-pytorch.log": (
        Word("1.0.0", 1),
        (
            RankFacts("rank 1", total=gib("79.11", 2), available_kv=gib("55.35", 2)),
            RankFacts(None, allocated_kv=gib("55.35", 3), tokens=Count(453408, 3)),
        ),
        gib("55.35", 3),
    ),
}


@pytest.mark.parametrize(("name", "expected"), FACTS.items(), ids=FACTS)
def test_each_process_has_its_figures(
    name: str, expected: tuple[Word | None, tuple[RankFacts, ...], Size | None]
) -> None:
    facts = facts_of(name)
    assert (facts.version, facts.ranks, kv_memory(facts)) == expected
    assert (facts.engine, facts.starts) == ("TensorRTLLM", 1)


def test_what_the_engine_was_built_for_is_read() -> None:
    assert facts_of("tensorrt-llm-0.13.log").settings == (
        Setting("maxNumSequences", "8", 5),
        Setting("maxBatchSize", "8", 6),
        Setting("maxBeamWidth", "1", 7),
        Setting("maxSequenceLen", "8192", 8),
    )
