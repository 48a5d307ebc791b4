"""How a log is read, whatever it is about: starts, processes, lines, colours, cuts."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvquota_api.memory.startup_log import LogFacts, parse_log
from kvquota_api.memory.startup_log.figures import Count, Word

LOGS = Path(__file__).parents[2] / "data" / "startup_logs"
NOTHING = LogFacts(
    engine=None,
    version=None,
    starts=1,
    device=None,
    ranks=(),
    caches=(),
    settings=(),
    notices=(),
    refusals=(),
    out_of_memory=(),
)

EMPTY = {"no text": "", "other text": "Once upon a time\n\nthere were 12 blocks.\n", "white space": " \r\n\t\n"}


@pytest.mark.parametrize("text", EMPTY.values(), ids=EMPTY)
def test_a_text_that_is_no_log_says_nothing(text: str) -> None:
    assert parse_log(text) == NOTHING


def test_where_a_container_started_again_only_the_last_start_counts() -> None:
    facts = parse_log((LOGS / "vllm-crash-loop.log").read_text())
    assert (facts.starts, facts.version, [each.available_kv for each in facts.ranks]) == (2, Word("0.11.2", 8), [None])
    assert {each.name: each.value for each in facts.settings} == {
        "model": "Qwen/Qwen3-8B",
        "dtype": "torch.bfloat16",
        "max_model_len": "8192",
        "max_seq_len": "8192",
        "tensor_parallel_size": "1",
    }


def test_two_lines_of_one_process_that_both_name_a_version_are_one_start() -> None:
    one = "(APIServer pid=1) vLLM API server version 0.20.0\n(APIServer pid=1)  █  version 0.20.0\n"
    facts = parse_log(one), parse_log(one + one)
    assert [(each.starts, each.version) for each in facts] == [(1, Word("0.20.0", 2)), (2, Word("0.20.0", 4))]


def test_engines_that_start_together_are_one_start() -> None:
    text = "".join(
        f"(EngineCore_DP{rank} pid={20 + rank}) Initializing a V1 LLM engine (v0.32.0) with config:"
        f" max_seq_len={rank},\n"
        for rank in range(3)
    )
    assert (parse_log(text).starts, parse_log(text + text).starts) == (1, 2)


RANKS = {
    "no name": ("INFO 01-01 10:00:00 core.py:1] ", None),
    "a process of vLLM": ("(EngineCore_DP0 pid=123) INFO ", "EngineCore_DP0"),
    "a worker within an engine": ("(EngineCore_DP0 pid=1) (Worker_TP1_EP1 pid=2) INFO ", "Worker_TP1_EP1"),
    "a rank beside the name": ("(VllmWorker rank=3 pid=405) INFO ", "VllmWorker 3"),
    "a rank within the name": ("(VllmWorker TP3 pid=405) INFO ", "VllmWorker TP3"),
    "workers that share a name": ("(VllmWorkerProcess pid=311) INFO ", "VllmWorkerProcess 311"),
    "workers of Ray": ("(RayWorkerWrapper pid=77, ip=10.0.0.4) INFO ", "RayWorkerWrapper 77"),
    "a stamp of Kubernetes before it": ("2026-05-14T02:11:00.1Z stdout F (Worker_TP1 pid=2) INFO ", "Worker_TP1"),
    "a name in colour": ("\x1b[0;36m(Worker_TP1 pid=2)\x1b[0;0m \x1b[32mINFO\x1b[0m ", "Worker_TP1"),
    "a colour that lost its escape": ("[0;36m(Worker_TP1 pid=2)[0;0m INFO[0m ", "Worker_TP1"),
    "a rank of SGLang": ("[2025-07-02 09:01:41 DP1 TP3] ", "DP1 TP3"),
    "a time with parts of a second": ("[2025-07-02 09:01:41.123 TP3] ", "TP3"),
    "a rank of MPI": ("[1,3]<stdout>:", "rank 3"),
    "a rank of TensorRT-LLM": ("[TRT-LLM] [RANK 2] [I] ", "rank 2"),
    "the name of a container": ("vllm-1  | (Worker_TP1 pid=2) INFO ", "Worker_TP1"),
    "the name of a container and no process": ("vllm-1  | INFO ", None),
    "the name of an error": ("torch.OutOfMemoryError: ", None),
    "the name of a function": ("llama_context: ", None),
    "JSON around it": ('{"level":"INFO","message":"', None),
}


@pytest.mark.parametrize(("prefix", "label"), RANKS.values(), ids=RANKS)
def test_the_process_is_the_one_that_the_line_names(prefix: str, label: str | None) -> None:
    facts = parse_log(f"(Worker_TP0 pid=1) waiting\n{prefix}# GPU blocks: 12, # CPU blocks: 3\n")
    assert [(each.label, each.blocks, each.host_blocks) for each in facts.ranks] == [(label, Count(12, 2), Count(3, 2))]


WRAPPED = {
    "in the middle": "(Worker_TP1 pid=2) INFO GPU KV cache size:\n93,872 tokens",
    "within the words": "(Worker_TP1 pid=2) INFO GPU KV\ncache size: 93,872 tokens",
    "more than once": "(Worker_TP1 pid=2) INFO GPU\nand host KV cache\nsize: 93,872\ntokens",
    "with a carriage return": "(Worker_TP1 pid=2) INFO GPU KV\r\ncache size: 93,872\r\ntokens",
}


@pytest.mark.parametrize("text", WRAPPED.values(), ids=WRAPPED)
def test_a_wrapped_line_is_the_process_that_began_it(text: str) -> None:
    facts = parse_log(text)
    assert [(each.label, each.tokens and each.tokens.value) for each in facts.ranks] == [("Worker_TP1", 93872)]


def test_a_configuration_ends_where_a_container_says_the_next_thing() -> None:
    text = (
        "vllm-1  | args: Namespace(block_size=32,\n  max_num_seqs=64)\n"
        "vllm-1  | loading (dtype=half, tensor_parallel_size=2)\n"
    )
    assert [(each.name, each.value, each.line) for each in parse_log(text).settings] == [
        ("block_size", "32", 1),
        ("max_num_seqs", "64", 1),
    ]


def test_a_line_far_from_any_process_is_nobodys() -> None:
    facts = parse_log("(Worker_TP1 pid=2) INFO\n" + "wrapped\n" * 5 + "num_gpu_blocks: 12\n")
    assert [each.label for each in facts.ranks] == [None]


CUT = {
    "cut within the number": "# GPU blocks: 12\n24, # CPU blocks: 3",
    "cut within the tokens": "GPU KV cache size: 93,8\n72 tokens",
    "cut within a size": "Available KV cache memory: 47.5\n5 GiB",
    "cut before the unit": "Available KV cache memory: 47.55 G\niB",
    "cut within a flag": "INFO with config: max_seq_len=13\n1072, x=1",
}


@pytest.mark.parametrize("text", CUT.values(), ids=CUT)
def test_a_number_that_was_cut_is_not_read(text: str) -> None:
    facts = parse_log(text)
    assert [(each.blocks, each.tokens, each.available_kv) for each in facts.ranks if each.host_blocks is None] == []
    assert all(each.blocks is None for each in facts.ranks)
    assert facts.settings == ()


FOLLOWED = {
    "the end": "",
    "a line feed": "\n",
    "a line of words": "\nINFO 10-21",
    "a date": "\n2026-11-02T10:00:00Z INFO",
    "a clock of llama.cpp": "\n0.00.402.118 I print_info",
    "a carriage return": "\r\nnext",
}


@pytest.mark.parametrize("after", FOLLOWED.values(), ids=FOLLOWED)
def test_a_number_at_the_end_of_its_line_is_read(after: str) -> None:
    assert [each.blocks for each in parse_log(f"num_gpu_blocks: 1224{after}").ranks] == [Count(1224, 1)]


def test_a_progress_bar_stays_on_its_line() -> None:
    bar = "".join(f"\rCapturing CUDA graphs: {percent}%" for percent in range(0, 101, 10))
    assert [each.blocks for each in parse_log(f"start\n{bar}\nnum_gpu_blocks: 7\n").ranks] == [Count(7, 3)]


def test_the_engine_is_the_one_with_the_most_lines() -> None:
    facts = parse_log("n_ctx = 4096\nnum_gpu_blocks: 7\nGPU KV cache size: 112 tokens\n")
    assert (facts.engine, facts.settings, [each.blocks for each in facts.ranks]) == ("vLLM", (), [Count(7, 2)])


def test_the_later_of_two_equally_exact_lines_counts() -> None:
    facts = parse_log("num_gpu_blocks: 7\nnum_gpu_blocks: 9\n")
    assert [each.blocks for each in facts.ranks] == [Count(9, 2)]


def test_bytes_that_are_no_text_are_passed_over() -> None:
    raw = b"\xff\xfe(Worker_TP1 pid=2) \x80# GPU blocks: 12, # CPU blocks: 3\n\xc3\x28"
    facts = parse_log(raw.decode(errors="replace"))
    assert [(each.label, each.blocks) for each in facts.ranks] == [("Worker_TP1", Count(12, 1))]


def test_a_setting_or_notice_that_is_not_there_is_none() -> None:
    assert (NOTHING.setting("dtype", "model"), NOTHING.notice("BlockTokens")) == (None, None)


@pytest.mark.parametrize(
    "quote",
    [
        "INFO 11-29 10:00:00 [request_logger.py:65] Received request cmpl-1: params: SamplingParams(stop=['{}'])",
        "INFO 11-29 10:00:00 logger.py:42] Received request cmpl-1: prompt: '{}', params: SamplingParams(n=1)",
        "[2026-11-29 10:00:00 TP0] Receive: obj=GenerateReqInput(rid='1', text='{}')",
    ],
)
def test_what_a_client_wrote_counts_for_nothing(quote: str) -> None:
    log = (LOGS / "vllm-0.32.0-cpu.log").read_text()
    lie = "GPU KV cache size: 1 tokens, Maximum concurrency for 5 tokens per request: 0.01x"
    lies = [lie, "Available KV cache memory: 0.01 GiB", "CUDA out of memory. Tried to allocate 1.00 GiB"]
    assert parse_log(log + "".join(quote.format(each) + "\n" for each in lies)) == parse_log(log)
