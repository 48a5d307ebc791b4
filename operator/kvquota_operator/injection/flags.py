"""The arguments that move an engine and that make it keep to its plan, engine by engine.

Decides which arguments each engine understands for it, and what it has none for. Pure. Invariants:

1. Only what the pool states or the plan says is set; for the rest the engine's own defaults and the pod's arguments
   hold.
2. All are appended: in each of these engines the last value of an option counts.

| what                | vLLM                     | SGLang                 | llama.cpp     | TensorRT-LLM     |
|---------------------|--------------------------|------------------------|---------------|------------------|
| KV memory           | --kv-cache-memory-bytes  | --max-total-tokens     | --ctx-size    | none, a file     |
| tokens of a block   | --block-size             | --page-size            | always 1      | none, a file     |
| sequences in a step | --max-num-seqs           | --max-running-requests | --parallel    | --max_batch_size |
| tokens in a step    | --max-num-batched-tokens | --chunked-prefill-size | --ubatch-size | --max_num_tokens |
| the longest request | --max-model-len          | --context-length       | (--ctx-size)  | --max_seq_len    |

Beside it what the sidecar uses: vLLM's priorities and details of prompt tokens, the metrics of SGLang and llama.cpp.

It does not know what an engine makes of them: the condition PartitionApplied says that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from kvquota_api.model_pool import ModelPoolSpec
from kvquota_api.pod_config import KvPlan
from kvquota_operator.injection.commands import has_option

LOOPBACK: Final = "127.0.0.1"
OVERRIDE: Final = "--num-gpu-blocks-override"  # of vLLM: where it is given, the size in bytes does not count

Pairs = Iterator[tuple[str, int | str | None]]  # an option and its value; "": it takes none, None: it is not set


def moved_to(spec: ModelPoolSpec, port: int) -> tuple[str, ...] | None:
    """The arguments that make the engine listen on loopback only; None where the kind of engine is not known."""
    if spec.engine.type == "OpenAI":
        return None
    return ("--host", LOOPBACK, "--port", str(port))


def engine_flags(spec: ModelPoolSpec, kv: KvPlan | None, words: Sequence[str] = ()) -> tuple[str, ...]:
    """The arguments that apply the partition. `kv`: the plan in force, `words`: what the engine is started with."""
    pairs = [*_TABLES[spec.engine.type](spec, kv)]
    if kv is not None and spec.engine.type == "vLLM" and has_option(words, OVERRIDE):
        pairs.append((OVERRIDE, kv.cap_blocks))
    return tuple(part for name, value in pairs if value is not None for part in (name, str(value)) if part)


def not_settable(spec: ModelPoolSpec, kv: KvPlan | None) -> str | None:
    """What no argument can say, as a sentence for the one who starts the engine; None: nothing."""
    if spec.engine.type != "TensorRTLLM" or kv is None:
        return None
    return (
        f"no argument of trtllm-serve sets the size of the KV cache: put kv_cache_config: {{max_tokens:"
        f" {kv.cap_blocks * kv.block_tokens}}} into the file of --extra_llm_api_options"
    )


def _vllm(spec: ModelPoolSpec, kv: KvPlan | None) -> Pairs:
    engine = spec.engine
    yield "--kv-cache-memory-bytes", None if kv is None else kv.cap_blocks * kv.bytes_per_block
    yield "--block-size", engine.block_size
    yield "--max-num-seqs", engine.max_num_seqs
    yield "--max-num-batched-tokens", engine.max_num_batched_tokens
    yield "--max-model-len", spec.model.max_model_len
    yield "--scheduling-policy", "priority"
    yield "--enable-prompt-tokens-details", ""


def _sglang(spec: ModelPoolSpec, kv: KvPlan | None) -> Pairs:
    engine = spec.engine
    yield "--max-total-tokens", None if kv is None else kv.cap_blocks * kv.block_tokens
    yield "--page-size", engine.block_size
    yield "--max-running-requests", engine.max_num_seqs
    yield "--chunked-prefill-size", engine.max_num_batched_tokens
    yield "--context-length", spec.model.max_model_len
    yield "--enable-metrics", ""


def _llamacpp(spec: ModelPoolSpec, kv: KvPlan | None) -> Pairs:
    engine = spec.engine
    yield "--ctx-size", None if kv is None else kv.cap_blocks * kv.block_tokens
    yield "--parallel", engine.slots
    yield "--kv-unified", "" if engine.unified_kv_cache else None
    yield "--ubatch-size", engine.max_num_batched_tokens
    yield "--metrics", ""
    yield "--slots", ""


def _tensorrt(spec: ModelPoolSpec, _: KvPlan | None) -> Pairs:
    yield "--max_batch_size", spec.engine.max_num_seqs
    yield "--max_num_tokens", spec.engine.max_num_batched_tokens
    yield "--max_seq_len", spec.model.max_model_len


def _unknown(_: ModelPoolSpec, __: KvPlan | None) -> Pairs:
    yield from ()


_TABLES: Final[Mapping[str, Callable[[ModelPoolSpec, KvPlan | None], Pairs]]] = {
    "vLLM": _vllm,
    "SGLang": _sglang,
    "LlamaCpp": _llamacpp,
    "TensorRTLLM": _tensorrt,
    "OpenAI": _unknown,
}
