"""What is read out of an exposition of vLLM: a few lines of one. A whole one is in test_metrics_of_recordings."""

from dataclasses import replace
from unittest.mock import ANY

import pytest

from kvquota_api.amounts import Blocks, Tokens
from kvquota_sidecar.engines.exposition import Sample, by_label, first_of, read
from kvquota_sidecar.engines.reading import Marks, Reading
from kvquota_sidecar.engines.vllm import read_vllm
from kvquota_sidecar.ledger.asking import EngineSample, RankSample

LINES = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.5
vllm:num_preemptions_total{engine="0",model_name="tiny"} 5.0
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 700.0
vllm:prompt_tokens_created{engine="0",model_name="tiny"} 1.764e+09
vllm:generation_tokens_total{engine="0",model_name="tiny"} 40.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="513",sliding_window="None"} 1.0
process_start_time_seconds 1.7640000005e+09
"""
SAMPLE = EngineSample(
    blocks=Blocks(513), block_tokens=Tokens(16), used_blocks=Blocks(256), running=3, waiting=1, preemptions=5
)
MARKS = Marks(starts=frozenset({1764000000.5}), work=740.0)
WHOLE = Reading(SAMPLE, MARKS)


def without(name: str) -> str:
    return "".join(line for line in LINES.splitlines(keepends=True) if not line.startswith(name))


def telling(**changes: object) -> Reading:
    return Reading(replace(SAMPLE, **changes), MARKS)  # type: ignore[arg-type]  # a table of any of its fields


CASES: dict[str, tuple[str, Reading | None]] = {
    "all of it": (LINES, WHOLE),
    "0.8: the old name of the gauge": (LINES.replace("kv_cache_usage_perc", "gpu_cache_usage_perc"), WHOLE),
    "0.8: no label for the rank": (LINES.replace('engine="0",', ""), WHOLE),
    "0.10: both names, the new one holds": (LINES + 'vllm:gpu_cache_usage_perc{engine="0"} 0.9\n', WHOLE),
    "several processes of one rank count once": (
        LINES.replace('engine="0",', 'engine="0",pid="1",') + without("vllm:prompt").replace("40.0", "0"),
        WHOLE,
    ),
    "lines that end as in HTTP": (LINES.replace("\n", "\r\n"), WHOLE),
    "an exemplar behind the value": (LINES.replace("} 0.5", '} 0.5 # {trace_id="7"} 1'), WHOLE),
    "nothing": ("", None),
    "another server": ("http_requests_total 3\nprocess_start_time_seconds 5\n", None),
    "renamed altogether": (LINES.replace("vllm:", "engine:"), None),
    "a comment that looks like it": ("# vllm:kv_cache_usage_perc 0.5\n", None),
    "a longer name that begins like it": ("vllm:num_requests_running_peak 3\n", None),
    "a full pool lacks the null block": (LINES.replace("} 0.5", "} 1.0"), telling(used_blocks=Blocks(512))),
    "a gauge of no number": (LINES.replace("} 0.5", "} NaN"), telling(used_blocks=None)),
    "a gauge below nothing": (LINES.replace("} 0.5", "} -0.5"), telling(used_blocks=None)),
    "a gauge above everything": (LINES.replace("} 0.5", "} 1.5"), telling(used_blocks=None)),
    "a count that is endless": (LINES.replace("} 3.0", "} +Inf"), telling(running=None)),
    "a count beyond all numbers of requests": (LINES.replace("} 3.0", "} 1e300"), telling(running=None)),
    "a size of no number": (
        LINES.replace('num_gpu_blocks="513"', 'num_gpu_blocks="None"'),
        telling(blocks=None, used_blocks=None),
    ),
    "a size of 5,000 digits": (
        LINES.replace('num_gpu_blocks="513"', f'num_gpu_blocks="{"9" * 5000}"'),
        telling(blocks=None, used_blocks=None),
    ),
    "a size that is not known yet": (
        LINES.replace('num_gpu_blocks="513"', 'num_gpu_blocks="0"'),
        telling(blocks=None, used_blocks=None),
    ),
    "without the sizes": (
        without("vllm:cache_config_info"),
        telling(blocks=None, block_tokens=None, used_blocks=None),
    ),
    "without the gauge": (without("vllm:kv_cache"), telling(used_blocks=None)),
    "without the counts": (without("vllm:num_requests"), telling(running=None, waiting=None)),
    "without preemptions": (without("vllm:num_preemptions"), telling(preemptions=None)),
    "finished sequences, by reason and rank": (
        LINES
        + 'vllm:request_success_total{engine="0",finished_reason="stop"} 7.0\n'
        + 'vllm:request_success_total{engine="0",finished_reason="length"} 3.0\n'
        + 'vllm:request_success_total{engine="1",finished_reason="stop"} 2.0\n',
        telling(finished=12),
    ),
    "what was looked up and found in the prefix cache": (
        LINES + 'vllm:prefix_cache_queries_total{engine="0"} 640.0\nvllm:prefix_cache_hits_total{engine="0"} 320.0\n',
        telling(prompt_tokens=640, cached_tokens=320),
    ),
    "0.9: the same by its old name": (
        LINES + "vllm:gpu_prefix_cache_queries_total 640.0\nvllm:gpu_prefix_cache_hits_total 320.0\n",
        telling(prompt_tokens=640, cached_tokens=320),
    ),
    "only a count": (
        "vllm:num_requests_running 2\n",
        Reading(EngineSample(running=2)),
    ),
    "several API servers: no start": (without("process"), Reading(SAMPLE, replace(MARKS, starts=frozenset()))),
    "several processes that say when they started": (
        LINES + 'process_start_time_seconds{pid="7"} 1.7640000015e+09\n',
        Reading(SAMPLE, replace(MARKS, starts=frozenset({1764000000.5, 1764000001.5}))),
    ),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_a_sample_holds_what_the_engine_says_and_nothing_else(text: str, expected: Reading | None) -> None:
    assert read_vllm(text) == expected


# Data-parallel ranks


def ranks(*usages: float, blocks: int = 513, of_one: str = "") -> str:
    """An exposition of as many ranks; `blocks` as every rank's line announces them."""
    lines = []
    for rank, usage in enumerate(usages):
        labels = f'engine="{rank}",model_name="tiny"'
        config = f'block_size="16",engine="{rank}",num_gpu_blocks="{blocks}"{of_one}'
        lines += [f"vllm:kv_cache_usage_perc{{{labels}}} {usage}", f"vllm:num_requests_running{{{labels}}} {rank + 1}"]
        lines += [f"vllm:num_requests_waiting{{{labels}}} 0", f"vllm:cache_config_info{{{config}}} 1"]
    return "\n".join(lines) + "\n"


def rank(number: int, used: int | None, running: int | None) -> RankSample:
    return RankSample(number, None if used is None else Blocks(used), running, 0)


def test_every_rank_is_told_apart_and_has_its_part_of_the_announced_blocks() -> None:
    reading = read_vllm(ranks(0.5, 0.25, blocks=2 * 401))
    assert reading is not None
    assert reading.sample == EngineSample(
        blocks=Blocks(401),
        block_tokens=Tokens(16),
        used_blocks=Blocks(300),
        running=3,
        waiting=0,
        ranks=(rank(0, 200, 1), rank(1, 100, 2)),
    )


def test_ten_ranks_are_in_the_order_of_their_numbers() -> None:
    reading = read_vllm(ranks(*[0.0] * 11, blocks=11 * 100))
    assert reading is not None
    assert [each.rank for each in reading.sample.ranks] == list(range(11))


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        pytest.param(ranks(0, 0, blocks=400, of_one=',kv_cache_size_tokens="6400"'), 400, id="it makes up the tokens"),
        pytest.param(ranks(0, 0, blocks=400, of_one=',kv_cache_size_tokens="3200"'), 200, id="it makes up twice them"),
        pytest.param(
            ranks(0, 0, blocks=400).replace('"1",num_gpu_blocks="400"', '"1",num_gpu_blocks="390"'),
            390,
            id="lines differ",
        ),
        pytest.param(ranks(0.0, blocks=400), 400, id="one rank"),
    ],
)
def test_announced_blocks_are_those_of_one_rank_or_of_all(text: str, blocks: int) -> None:
    reading = read_vllm(text)
    assert reading is not None
    assert reading.sample.blocks == blocks


def test_a_rank_that_does_not_say_what_is_in_use_leaves_the_sum_unknown() -> None:
    text = ranks(0.5, 0.25, blocks=2 * 401).replace('vllm:kv_cache_usage_perc{engine="1"', 'other{engine="1"')
    reading = read_vllm(text)
    assert reading is not None
    assert (reading.sample.used_blocks, reading.sample.running) == (None, 3)
    assert reading.sample.ranks == (rank(0, 200, 1), rank(1, None, 2))


@pytest.mark.parametrize("name", ["b", "", "00", "-1", "\u0661", "9" * 5000])
def test_ranks_without_numbers_are_not_told_apart(name: str) -> None:
    reading = read_vllm(ranks(0.5, 0.25, blocks=401).replace('engine="1"', f'engine="{name}"'))
    assert reading is not None
    assert (reading.sample.ranks, reading.sample.running) == ((), 3)


# The text


def test_labels_may_hold_anything_in_quotes() -> None:
    found = read(
        'a{x="{,} \\" \\\\",engine="7"} +1.5e1 123\nab 3\n a 4\na{} 5\na\t6\na x\na 1.5.2\na{x="1} 7\na', ("a",)
    )
    assert found == {"a": [Sample({"x": '{,} \\" \\\\', "engine": "7"}, 15.0), Sample({}, 5.0), Sample({}, 6.0)]}


def test_the_first_alias_that_is_there_holds() -> None:
    one, two = [Sample({}, 1)], [Sample({}, 2)]
    assert first_of({"new": one, "old": two}, ("new", "old")) == one
    assert first_of({"old": two}, ("new", "old")) == two
    assert first_of({}, ("new", "old")) == []


def test_each_rank_counts_with_its_largest_value() -> None:
    samples = [Sample({"engine": "0"}, 1), Sample({"engine": "0"}, 3), Sample({}, 2)]
    assert by_label(samples, "engine") == {"0": 3, "": 2}


@pytest.mark.parametrize(
    "garbage",
    ["a{" + "b" * 2**21, 'a{b="' * 2**18, "a{" + 'b="\\' * 2**18, "a{}" * 2**19, "\na{" * 2**18, "a{" + "}" * 2**20],
    ids=["one long word", "open quotes", "open escapes", "braces", "lines", "ends"],
)
def test_garbage_of_megabytes_is_read_in_no_time(garbage: str) -> None:
    assert read(garbage, ("a",)) == {}
    assert read("a{" + garbage.strip("a{}\n") + "} 1", ("a",)) in ({}, {"a": [Sample(ANY, 1.0)]})
