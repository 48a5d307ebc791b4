"""What is read out of an exposition of SGLang, and of what its server says of itself."""

from dataclasses import replace

import pytest

from kvquota_api.amounts import Blocks, Tokens
from kvquota_sidecar.engines.reading import Marks, Reading
from kvquota_sidecar.engines.sglang import SglangInfo, read_info, read_sglang
from kvquota_sidecar.ledger.asking import EngineSample, RankSample

LABELS = 'engine_type="unified",model_name="tiny",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
LINES = f"""\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{{LABELS}}} 3.0
sglang:num_queue_reqs{{{LABELS}}} 1.0
sglang:token_usage{{{LABELS}}} 0.25
sglang:full_token_usage{{{LABELS}}} 0.25
sglang:num_used_tokens{{{LABELS}}} 1001.0
sglang:max_total_num_tokens{{{LABELS}}} 4100.0
sglang:page_size{{{LABELS}}} 16.0
sglang:num_pages{{{LABELS}}} 256.0
sglang:engine_startup_time{{{LABELS}}} 21.5
sglang:engine_load_weights_time{{{LABELS}}} 0.0
sglang:num_retracted_requests_total{{{LABELS}}} 5.0
sglang:prompt_tokens_total{{model_name="tiny"}} 700.0
sglang:generation_tokens_total{{model_name="tiny"}} 40.0
"""
SAMPLE = EngineSample(
    blocks=Blocks(256), block_tokens=Tokens(16), used_blocks=Blocks(63), running=3, waiting=1, preemptions=5
)
MARKS = Marks(constants=(("", 21.5),), work=740.0)
WHOLE = Reading(SAMPLE, MARKS)


def without(*names: str) -> str:
    prefixes = tuple(f"sglang:{name}" for name in names)
    return "".join(line for line in LINES.splitlines(keepends=True) if not line.startswith(prefixes))


def telling(**changes: object) -> Reading:
    return Reading(replace(SAMPLE, **changes), MARKS)  # type: ignore[arg-type]  # a table of any of its fields


OLD = without("page_size", "num_pages")
CASES: dict[str, tuple[str, SglangInfo, Reading | None]] = {
    "all of it": (LINES, SglangInfo(), WHOLE),
    "tensor-parallel ranks show the same pool": (
        LINES + LINES.replace('tp_rank="0"', 'tp_rank="1"'),
        SglangInfo(),
        Reading(SAMPLE, Marks(constants=(("", 21.5), ("", 21.5)), work=1480.0)),
    ),
    "requests of each priority are in the total": (
        LINES.replace('tp_rank="0"', 'priority="",tp_rank="0"')
        + f'sglang:num_running_reqs{{{LABELS},priority="5"}} 2\nsglang:num_running_reqs{{{LABELS},priority="9"}} 90\n',
        SglangInfo(),
        WHOLE,
    ),
    "a full pool": (
        without("num_used_tokens").replace(" 0.25\n", " 1.0\n"),
        SglangInfo(),
        telling(used_blocks=Blocks(256)),
    ),
    "old: the page is told elsewhere": (OLD, SglangInfo(page_size=16), WHOLE),
    "old: the page and the pool are told elsewhere": (
        without("page_size", "num_pages", "max_total"),
        SglangInfo(16, 4100),
        WHOLE,
    ),
    "old: the page is told nowhere": (
        OLD,
        SglangInfo(),
        telling(blocks=None, block_tokens=None, used_blocks=None),
    ),
    "without the tokens the share counts": (without("num_used_tokens"), SglangInfo(), telling(used_blocks=Blocks(64))),
    "the pool of states is fuller": (
        LINES + f"sglang:mamba_usage{{{LABELS}}} 0.5\n",
        SglangInfo(),
        telling(used_blocks=Blocks(128)),
    ),
    "the pool of states is emptier": (LINES + f"sglang:mamba_usage{{{LABELS}}} 0.1\n", SglangInfo(), WHOLE),
    "neither tokens nor share": (
        without("num_used_tokens", "token_usage"),
        SglangInfo(),
        telling(used_blocks=None),
    ),
    "a share above everything": (
        without("num_used_tokens").replace("} 0.25", "} 25"),
        SglangInfo(),
        telling(used_blocks=None),
    ),
    "a page of nothing": (
        LINES.replace("} 16.0", "} 0"),
        SglangInfo(),
        telling(blocks=None, block_tokens=None, used_blocks=None),
    ),
    "without the counts": (without("num_running", "num_queue"), SglangInfo(), telling(running=None, waiting=None)),
    "nothing": ("", SglangInfo(16, 4100), None),
    "another engine": ("vllm:num_requests_running 3\n", SglangInfo(), None),
    "one that says how it was started": (
        "sglang:num_running_reqs 2\nprocess_start_time_seconds 5\n",
        SglangInfo(),
        Reading(EngineSample(running=2), Marks(starts=frozenset({5.0}))),
    ),
}


@pytest.mark.parametrize(("text", "info", "expected"), CASES.values(), ids=CASES)
def test_a_sample_holds_what_the_engine_says_and_nothing_else(
    text: str, info: SglangInfo, expected: Reading | None
) -> None:
    assert read_sglang(text, info) == expected


def test_every_data_parallel_rank_is_told_apart_and_has_a_pool_of_its_own() -> None:
    first = LINES.replace('tp_rank="0"', 'dp_rank="0",tp_rank="0"')
    second = first.replace('dp_rank="0"', 'dp_rank="1"').replace("} 1001.0", "} 500.0").replace("} 3.0", "} 4.0")
    reading = read_sglang(first + second, SglangInfo())
    assert reading is not None
    assert reading.sample == EngineSample(
        blocks=Blocks(256),
        block_tokens=Tokens(16),
        used_blocks=Blocks(63 + 32),
        running=7,
        waiting=2,
        preemptions=10,
        ranks=(RankSample(0, Blocks(63), 3, 1), RankSample(1, Blocks(32), 4, 1)),
    )


@pytest.mark.parametrize(
    ("body", "info"),
    [
        (b'{"page_size":1,"max_total_num_tokens":900,"model_path":"m"}', SglangInfo(1, 900)),
        (b'{"page_size":null}', SglangInfo()),
        (b'{"page_size":-16}', SglangInfo()),
        (b'{"page_size":0}', SglangInfo()),
        (b'{"page_size":"many"}', SglangInfo()),
        (b"not found", SglangInfo()),
        (b"\xff", SglangInfo()),
        (b"", SglangInfo()),
        (b'{"internal_states":' + b"[" * 100_000, SglangInfo()),
    ],
    ids=[
        "both",
        "null",
        "below nothing",
        "of nothing",
        "a word",
        "a sentence",
        "no text",
        "nothing",
        "nested without end",
    ],
)
def test_of_the_server_s_own_words_only_two_numbers_are_read(body: bytes, info: SglangInfo) -> None:
    assert read_info(body) == info
