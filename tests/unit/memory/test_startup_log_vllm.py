"""vLLM's start-up logs, of V0 and V1: every figure with its line."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from kvquota_api.memory.startup_log import LogFacts, Size, kv_memory, parse_log
from kvquota_api.memory.startup_log.facts import Notice, RankFacts, Refusal
from kvquota_api.memory.startup_log.figures import Count, Ratio, Word

LOGS = Path(__file__).parents[2] / "data" / "startup_logs"


def facts_of(name: str) -> LogFacts:
    return parse_log((LOGS / name).read_text(errors="replace"))


def gib(number: str, line: int) -> Size:
    decimals = max(2, len(number.partition(".")[2]))
    return Size(round(Fraction(number) * 2**30), -(-(2**30) // (2 * 10**decimals)), line)


def ratio(number: str, line: int) -> Ratio:
    return Ratio(Fraction(number), Fraction(1, 200), line)


RANKS = {
    "vllm-0.6.3-refused.log": (
        RankFacts(
            None,
            weights=gib("14.9888", 6),
            blocks=Count(1478, 7),
            host_blocks=Count(2048, 7),
            concurrency=ratio("0.82", 8),
            concurrency_length=Count(29000, 8),
        ),
    ),
    "vllm-0.6.4-profiled.log": (
        RankFacts(
            None,
            total=gib("22.17", 3),
            memory_fraction=ratio("0.90", 3),
            weights=gib("2.8797", 2),
            non_torch=gib("0.20", 3),
            graphs=gib("0.18", 6),
            available_kv=gib("15.52", 3),
            blocks=Count(36332, 4),
            host_blocks=Count(9362, 4),
            concurrency=ratio("141.92", 5),
            concurrency_length=Count(4096, 5),
        ),
    ),
    "vllm-0.7.3-v0.log": (
        RankFacts(
            None,
            total=gib("14.74", 6),
            requested=gib("8.76", 6),
            memory_fraction=ratio("0.59", 6),
            weights=gib("5.5976", 4),
            activation=gib("0.74", 7),
            non_torch=gib("0.03", 7),
            graphs=gib("0.72", 10),
            available_kv=gib("2.39", 7),
            blocks=Count(1224, 8),
            host_blocks=Count(3072, 8),
            concurrency=ratio("19.12", 9),
            concurrency_length=Count(1024, 9),
        ),
    ),
    "vllm-0.8.5-v0-rocm-tp2.log": (
        RankFacts(
            "VllmWorkerProcess 311",
            total=gib("63.98", 7),
            requested=gib("57.59", 7),
            memory_fraction=ratio("0.90", 7),
            weights=gib("13.9281", 4),
            activation=gib("0.61", 8),
            non_torch=gib("1.22", 8),
            available_kv=gib("41.83", 8),
        ),
        RankFacts(
            None,
            total=gib("63.98", 10),
            requested=gib("57.59", 10),
            memory_fraction=ratio("0.90", 10),
            weights=gib("13.9281", 5),
            activation=gib("0.93", 11),
            non_torch=gib("1.30", 11),
            available_kv=gib("41.43", 11),
            blocks=Count(28282, 12),
            host_blocks=Count(2730, 12),
            concurrency=ratio("110.48", 13),
            concurrency_length=Count(4096, 13),
        ),
    ),
    "vllm-0.10.1-v1-tp2.log": (
        RankFacts(
            "VllmWorker 0",
            total=gib("79.15", 20),
            free=gib("78.68", 20),
            requested=gib("19.79", 20),
            memory_fraction=ratio("0.25", 20),
            weights=gib("7.1217", 9),
            activation=gib("0.21", 20),
            non_torch=gib("0.44", 20),
            graphs=gib("0.65", 20),
            available_kv=Size(12908123456, 0, 20),
        ),
        RankFacts("VllmWorker 1", weights=gib("7.1217", 10), available_kv=gib("12.02", 12), graphs=gib("0.65", 19)),
        RankFacts(
            "EngineCore_0",
            tokens=Count(450192, 15),
            concurrency=ratio("27.48", 16),
            concurrency_length=Count(16384, 16),
        ),
    ),
    "vllm-0.19.2-hybrid.log": (
        RankFacts(
            "EngineCore",
            weights=gib("75.03", 8),
            graphs=gib("0.38", 15),
            estimated_graphs=gib("-0.81", 9),
            available_kv=gib("36.25", 10),
            tokens=Count(1399712, 12),
            concurrency=ratio("27.81", 13),
            concurrency_length=Count(131072, 13),
        ),
    ),
    "vllm-0.20.2-mla-dcp-colour.log": (
        *(
            RankFacts(
                f"Worker_TP{rank}",
                weights=gib("56.62", 10 + rank),
                graphs=gib("1.22", 40 + rank),
                estimated_graphs=gib("4.77", 40 + rank),
                available_kv=gib(f"14.{22 - rank}", 19 + 2 * rank),
            )
            for rank in range(8)
        ),
        RankFacts(
            "EngineCore",
            tokens=Count(976128, 35),
            concurrency=ratio("4.81", 36),
            concurrency_length=Count(202752, 36),
        ),
    ),
    "vllm-0.32.0-cpu.log": (
        RankFacts("Worker", total=gib("15.71", 48), available_kv=gib("0.02", 48)),
        RankFacts(
            "EngineCore", tokens=Count(16384, 49), concurrency=ratio("8.00", 49), concurrency_length=Count(2048, 49)
        ),
    ),
    "vllm-0.33.0-kubectl-wrapped.log": (
        RankFacts(
            "Worker_DP0_TP0",
            total=gib("79.18", 15),
            free=gib("78.58", 9),
            requested=gib("72.85", 15),
            memory_fraction=ratio("0.92", 15),
            weights=gib("30.59", 7),
            activation=gib("5.64", 15),
            graphs=gib("0.5", 15),
            available_kv=gib("20.0", 15),
        ),
        RankFacts(
            "EngineCore_DP0",
            tokens=Count(163840, 11),
            concurrency=ratio("4.00", 12),
            concurrency_length=Count(40944, 12),
        ),
        RankFacts(
            "EngineCore_DP1",
            tokens=Count(163840, 14),
            concurrency=ratio("4.00", 14),
            concurrency_length=Count(40944, 14),
        ),
    ),
    "vllm-0.15.1-refused.log": (),
    "vllm-crash-loop.log": (
        RankFacts(
            "EngineCore_DP0",
            total=gib("23.64", 9),
            free=gib("3.1", 9),
            memory_fraction=ratio("0.9", 9),
            requested=gib("21.28", 9),
        ),
    ),
}


@pytest.mark.parametrize(("name", "ranks"), RANKS.items(), ids=RANKS)
def test_each_process_has_its_figures(name: str, ranks: tuple[RankFacts, ...]) -> None:
    assert facts_of(name).ranks == ranks


IDENTITY = {
    "vllm-0.6.3-refused.log": (Word("0.6.3.post1", 3), None),
    "vllm-0.6.4-profiled.log": (Word("0.6.4.post1", 1), None),
    "vllm-0.7.3-v0.log": (Word("0.7.3", 2), None),
    "vllm-0.8.5-v0-rocm-tp2.log": (Word("0.8.5.post1", 3), None),
    "vllm-0.10.1-v1-tp2.log": (Word("0.10.1.1", 7), Word("GPU", 15)),
    "vllm-0.19.2-hybrid.log": (Word("0.19.2rc1.dev134+g97a3c2b11", 5), Word("GPU", 12)),
    "vllm-0.20.2-mla-dcp-colour.log": (Word("0.20.2rc1.dev249+g4a1b2c3d4", 9), Word("GPU", 35)),
    "vllm-0.32.0-cpu.log": (Word("0.32.0", 21), Word("CPU", 49)),
    "vllm-0.33.0-kubectl-wrapped.log": (Word("0.33.0", 6), Word("GPU + host", 14)),
    "vllm-0.15.1-refused.log": (Word("0.15.1", 1), None),
}


@pytest.mark.parametrize(("name", "expected"), IDENTITY.items(), ids=IDENTITY)
def test_engine_version_and_device_are_read(name: str, expected: tuple[Word, Word | None]) -> None:
    facts = facts_of(name)
    assert (facts.engine, facts.starts, facts.version, facts.device) == ("vLLM", 1, *expected)


NOTICES = {
    "a hybrid with a drafter": (
        "vllm-0.19.2-hybrid.log",
        (
            Notice("BlockTokens", 6, Ratio(Fraction(8432), Fraction(1), 6), "EngineCore"),
            Notice("StatePadding", 7, ratio("0.07", 7), "EngineCore"),
            Notice("PaddingLayers", 11, Ratio(Fraction(5), Fraction(1), 11), "EngineCore"),
        ),
    ),
    "packed latents": (
        "vllm-0.20.2-mla-dcp-colour.log",
        (
            Notice("PackedLatent", 8, None, "APIServer"),
            Notice("BlockTokens", 34, Ratio(Fraction(64), Fraction(1), 34), "EngineCore"),
        ),
    ),
    "a length that was cut": (
        "vllm-0.33.0-kubectl-wrapped.log",
        (Notice("LengthReduced", 10, Ratio(Fraction(40944), Fraction(1), 10), "EngineCore_DP0"),),
    ),
    "none": ("vllm-0.32.0-cpu.log", ()),
}


@pytest.mark.parametrize(("name", "notices"), NOTICES.values(), ids=NOTICES)
def test_what_the_engine_decided_by_itself_is_read(name: str, notices: tuple[Notice, ...]) -> None:
    assert facts_of(name).notices == notices


REFUSALS = {
    "vllm-0.6.3-refused.log": (Refusal("LengthAboveCapacity", 15, length=29000, capacity=23648),),
    "vllm-0.15.1-refused.log": (
        Refusal(
            "LengthAboveMemory",
            3,
            length=262144,
            estimated_length=34736,
            needed=gib("24.0", 3),
            available=gib("3.18", 3),
        ),
    ),
    "vllm-crash-loop.log": (
        Refusal("CardTaken", 9, needed=gib("21.28", 9), available=gib("3.1", 9)),
        Refusal("StatesExhausted", 10, sequences=256, capacity=184),
    ),
    "vllm-0.7.3-v0.log": (),
}


@pytest.mark.parametrize(("name", "refusals"), REFUSALS.items(), ids=REFUSALS)
def test_why_the_engine_does_not_start_is_read_once(name: str, refusals: tuple[Refusal, ...]) -> None:
    assert facts_of(name).refusals == refusals


def test_a_card_that_holds_weights_of_another_process_is_taken_too() -> None:
    text = (
        "ValueError: Free memory on device cuda:0 (61.2/79.18 GiB) on startup is less than the engine's budget after"
        " excluding external process's weights (0.9, 71.26 GiB). Decrease GPU memory utilization\n"
    )
    refusal = Refusal("CardTaken", 1, needed=gib("71.26", 1), available=gib("61.2", 1))
    assert parse_log(text).refusals == (refusal,)


BUDGETS = {
    "what the memory profile leaves": ("vllm-0.7.3-v0.log", gib("2.39", 7)),
    "the process with the least": ("vllm-0.8.5-v0-rocm-tp2.log", gib("41.43", 11)),
    "of the same the exact one": ("vllm-0.10.1-v1-tp2.log", Size(12908123456, 0, 20)),
    "of the same the least": ("vllm-0.20.2-mla-dcp-colour.log", gib("14.15", 33)),
    "as it was told": ("vllm-0.32.0-cpu.log", Size(16777216, 0, 12)),
    "nothing": ("vllm-0.6.3-refused.log", None),
}


@pytest.mark.parametrize(("name", "budget"), BUDGETS.values(), ids=BUDGETS)
def test_the_budget_of_the_cache_is_the_one_that_decides(name: str, budget: Size | None) -> None:
    assert kv_memory(facts_of(name)) == budget


LINES = {
    "# CUDA blocks: 3637, # CPU blocks: 2340": RankFacts(None, blocks=Count(3637, 1), host_blocks=Count(2340, 1)),
    "# cuda blocks: 3637, # CPU blocks: 2340": RankFacts(None, blocks=Count(3637, 1), host_blocks=Count(2340, 1)),
    "# cpu blocks: 512, # CPU blocks: 0": RankFacts(None, blocks=Count(512, 1), host_blocks=Count(0, 1)),
    "# CPU blocks: 2340": RankFacts(None, host_blocks=Count(2340, 1)),
    "INFO gpu_model_runner.py:1] num_gpu_blocks is: 89994": RankFacts(None, blocks=Count(89994, 1)),
    "XPU KV cache size: 93,872 tokens": RankFacts(None, tokens=Count(93872, 1)),
    "Available KV cache memory: -0.53 GiB": RankFacts(None, available_kv=gib("-0.53", 1)),
    "Available KV cache memory: 13.1 GiB": RankFacts(None, available_kv=gib("13.10", 1)),
    "Maximum concurrency for 8,192 tokens per request: 7.11x": RankFacts(
        None, concurrency=ratio("7.11", 1), concurrency_length=Count(8192, 1)
    ),
    "Loading model weights took 14.9888 GB": RankFacts(None, weights=gib("14.9888", 1)),
    "Model loading took 14.9888 GiB and 3.2 seconds": RankFacts(None, weights=gib("14.9888", 1)),
    "Graph capturing finished in 21 secs, took 0.72 GiB": RankFacts(None, graphs=gib("0.72", 1)),
    "Estimated CUDA graph memory: -0.07 GiB total": RankFacts(None, estimated_graphs=gib("-0.07", 1)),
    "Explicitly set (0.25/17.09) GiB for KV cache on node 0.": RankFacts(
        None, available_kv=gib("0.25", 1), total=gib("17.09", 1)
    ),
    "Auto set (4.0/17.09) GiB for KV cache on node 0, with 8.0 GiB": RankFacts(
        None, available_kv=gib("4.0", 1), total=gib("17.09", 1)
    ),
    "Initial free memory: 78.58 GiB; Requested memory: 0.900000 (util), 71.26 GiB": RankFacts(
        None,
        free=gib("78.58", 1),
        memory_fraction=Ratio(Fraction(9, 10), Fraction(1, 2_000_000), 1),
        requested=gib("71.26", 1),
    ),
    "The current --gpu-memory-utilization=0.9200 is equivalent to --gpu-memory-utilization=0.9084 without": RankFacts(
        None, memory_fraction=Ratio(Fraction(92, 100), Fraction(1, 20_000), 1)
    ),
    "Memory profiling results: total_gpu_memory=39.39GiB non_torch_memory=0.10GiB kv_cache_size=2.89GiB"
    " gpu_memory_utilization=0.80": RankFacts(
        None,
        total=gib("39.39", 1),
        non_torch=gib("0.10", 1),
        available_kv=gib("2.89", 1),
        memory_fraction=ratio("0.80", 1),
    ),
}


@pytest.mark.parametrize(("line", "expected"), LINES.items(), ids=LINES)
def test_a_line_gives_its_figures(line: str, expected: RankFacts) -> None:
    facts = parse_log(line)
    assert (facts.engine, facts.ranks) == ("vLLM", (expected,))


NOTICE_LINES = {
    "Forcing kv cache block size to 128 for CUTLASS_MLA backend.": ("BlockTokens", 128),
    "Setting attention block size to 544 tokens to ensure that attention page size is >= mamba": ("BlockTokens", 544),
    "Hybrid KV cache manager is disabled for this hybrid model": ("HybridDisabled", None),
    "Overriding num_gpu_blocks=1224 with num_gpu_blocks_override=64": ("BlocksOverridden", 64),
}


@pytest.mark.parametrize(("line", "expected"), NOTICE_LINES.items(), ids=NOTICE_LINES)
def test_a_line_gives_its_notice(line: str, expected: tuple[str, int | None]) -> None:
    kind, value = expected
    figure = None if value is None else Ratio(Fraction(value), Fraction(1), 1)
    facts = parse_log(line)
    assert [(each.kind, each.value) for each in facts.notices] == [(kind, figure)]
    assert facts.ranks == ()


NOTHING = (
    "Encoder graph capturing finished in 1 secs, took 9.99 GiB (3 graphs)",
    "Engine 000: Running: 1 reqs, GPU KV cache usage: 6.3%, Prefix cache hit rate: 3.9%",
    "GPU KV cache size: 93,872",
    "Number of sequences of size: 12 tokens",
    "Available KV cache memory: 5.01",
    "Maximum concurrency for 8,192 tokens per request: 7.11",
    "blocks: 12",
)


@pytest.mark.parametrize("line", NOTHING)
def test_a_line_that_is_cut_or_about_something_else_gives_nothing(line: str) -> None:
    assert parse_log(line).ranks == ()
