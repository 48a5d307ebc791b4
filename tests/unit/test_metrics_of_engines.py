"""What is read out of an engine's exposition."""

import pytest

from kvquota_api.amounts import Blocks, Tokens
from kvquota_sidecar.engines.exposition import Exposition, Sample, by_engine, first_of
from kvquota_sidecar.engines.vllm import read_sample
from kvquota_sidecar.ledger.asking import EngineSample

RECORDED = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.5
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="513",sliding_window="None"} 1.0
process_start_time_seconds 1.7640000005e+09
"""
WHOLE = EngineSample(
    blocks=Blocks(513), block_tokens=Tokens(16), used_blocks=Blocks(256), running=3, waiting=1, started_at=1764000000.5
)


def without(name: str) -> str:
    return "".join(line for line in RECORDED.splitlines(keepends=True) if not line.startswith(name))


CASES: dict[str, tuple[str, EngineSample | None]] = {
    "all of it": (RECORDED, WHOLE),
    "the old name of the gauge": (RECORDED.replace("kv_cache_usage_perc", "gpu_cache_usage_perc"), WHOLE),
    "both names: the new one holds": (RECORDED + 'vllm:gpu_cache_usage_perc{engine="0"} 0.9\n', WHOLE),
    "several processes of one engine count once": (
        RECORDED.replace('engine="0",', 'engine="0",pid="1",') + RECORDED,
        WHOLE,
    ),
    "nothing": ("", None),
    "another server": ("http_requests_total 3\nprocess_start_time_seconds 5\n", None),
    "renamed altogether": (RECORDED.replace("vllm:", "engine:"), None),
    "a comment that looks like it": ("# vllm:kv_cache_usage_perc 0.5\n", None),
    "a gauge of no number": (
        RECORDED.replace("} 0.5", "} NaN"),
        EngineSample(Blocks(513), Tokens(16), None, 3, 1, 1764000000.5),
    ),
    "a size of no number": (
        RECORDED.replace('num_gpu_blocks="513"', 'num_gpu_blocks="None"'),
        EngineSample(None, Tokens(16), None, 3, 1, 1764000000.5),
    ),
    "without the sizes": (without("vllm:cache_config_info"), EngineSample(None, None, None, 3, 1, 1764000000.5)),
    "without the gauge": (without("vllm:kv_cache"), EngineSample(Blocks(513), Tokens(16), None, 3, 1, 1764000000.5)),
    "without the counts": (
        without("vllm:num_requests"),
        EngineSample(Blocks(513), Tokens(16), Blocks(256), None, None, 1764000000.5),
    ),
    "without a start": (without("process"), EngineSample(Blocks(513), Tokens(16), Blocks(256), 3, 1, None)),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_a_sample_holds_what_the_engine_says_and_nothing_else(text: str, expected: EngineSample | None) -> None:
    assert read_sample(text) == expected


def test_several_engines_add_up_and_the_fullest_one_is_the_gauge() -> None:
    second = RECORDED.replace('engine="0"', 'engine="1"').replace("} 0.5", "} 0.75")
    sample = read_sample(RECORDED + second)
    assert sample is not None
    assert (sample.running, sample.waiting, sample.used_blocks) == (6, 2, 384)


def test_labels_may_hold_anything_in_quotes() -> None:
    found = Exposition(frozenset({"a"})).read(
        'a{x="{,} \\" \\\\",engine="7"} +1.5e1 123\nab 3\n a 4\na{} 5\na\t6\na x\na 1.5.2\n'
    )
    assert found == {"a": [Sample({"x": '{,} \\" \\\\', "engine": "7"}, 15.0), Sample({}, 5.0), Sample({}, 6.0)]}


def test_the_first_alias_that_is_there_holds() -> None:
    one, two = [Sample({}, 1)], [Sample({}, 2)]
    assert first_of({"new": one, "old": two}, ("new", "old")) == one
    assert first_of({"old": two}, ("new", "old")) == two
    assert first_of({}, ("new", "old")) == []


def test_each_engine_counts_with_its_largest_value() -> None:
    assert by_engine([Sample({"engine": "0"}, 1), Sample({"engine": "0"}, 3), Sample({}, 2)]) == {"0": 3, "": 2}
