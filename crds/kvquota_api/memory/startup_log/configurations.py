"""The flags of an engine, out of the lines in which it prints its whole configuration.

Pure. Read are vLLM's `non-default args: {...}`, `args: Namespace(...)` and `... with config: ...`, and SGLang's
`server_args=ServerArgs(...)`. Invariants:

1. Of a name that occurs more than once in one line the first counts: the engine's own flags come before those of the
   parts that it is made of. The drafter's are kept apart, as `speculative_config.<name>`.
2. `None` is not a setting. A value that does not end where a value may end was cut and is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kvquota_api.memory.inputs import EngineName
from kvquota_api.memory.startup_log.facts import Setting
from kvquota_api.memory.startup_log.rules import CONFIGURATION_WINDOW, Finding, Place, Rule

SPECULATIVE: Final = "speculative_config"
_NAMES: Final = {
    "vLLM": frozenset(
        (
            "model",
            "model_tag",
            "dtype",
            "quantization",
            "kv_cache_dtype",
            "max_model_len",
            "max_seq_len",
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "data_parallel_size",
            "decode_context_parallel_size",
            "block_size",
            "gpu_memory_utilization",
            "kv_cache_memory_bytes",
            "max_num_batched_tokens",
            "max_num_seqs",
            "enable_prefix_caching",
            "async_scheduling",
            "disable_hybrid_kv_cache_manager",
            "mamba_ssm_cache_dtype",
            "enforce_eager",
            "num_gpu_blocks_override",
            "device_config",
        )
    ),
    "SGLang": frozenset(
        (
            "model_path",
            "dtype",
            "quantization",
            "kv_cache_dtype",
            "context_length",
            "mem_fraction_static",
            "max_running_requests",
            "max_total_tokens",
            "swa_full_tokens_ratio",
            "mamba_full_memory_ratio",
            "chunked_prefill_size",
            "page_size",
            "tp_size",
            "pp_size",
            "dp_size",
            "disable_radix_cache",
            "speculative_algorithm",
            "speculative_num_draft_tokens",
            "speculative_num_steps",
            "speculative_draft_model_path",
        )
    ),
}
_PAIR: Final = re.compile(
    r"""(?<![\w.])([a-z][a-z0-9_]{1,60})['"]?\s{0,4}[=:]\s{0,4}"""
    r"""(?:'([^'\n]{0,500})'|"([^"\n]{0,500})"|([\w.+/-]{1,200}))(?=\s{0,80}[,)}\]]|\s{0,4}$)"""
)
_DRAFTER: Final = re.compile(
    r"""speculative_config['"]?\s{0,4}[=:]\s{0,4}(?:['"]?\{([^{}]{0,2000})\}|SpeculativeConfig\(([^()]{0,2000})\))"""
)
_DRAFTER_NAMES: Final = {  # as the flag and as the engine prints them
    "method": "method",
    "model": "model",
    "num_speculative_tokens": "num_speculative_tokens",
    "num_spec_tokens": "num_speculative_tokens",
    "draft_model": "model",
}


def _settings(text: str, names: Iterable[str], line: int) -> Iterable[Setting]:
    wanted = set(names)
    for match in _PAIR.finditer(text):
        if match[1] not in wanted:
            continue
        wanted.discard(match[1])
        value = next(group for group in match.groups()[1:] if group is not None)
        if value != "None":
            yield Setting(match[1], value, line)


def _drafter(text: str, line: int) -> Iterable[Setting]:
    for setting in _settings(text, _DRAFTER_NAMES, line):
        yield Setting(f"{SPECULATIVE}.{_DRAFTER_NAMES[setting.name]}", setting.value, line)


def _rule(engine: EngineName, cue: str, before: tuple[str, ...] = ("",), begins: int | None = None) -> Rule:
    def read(match: re.Match[str], place: Place) -> Iterable[Finding]:
        if not place.before.endswith(before):
            return
        drafter = _DRAFTER.search(match[0])
        if drafter is not None:
            yield from _drafter(drafter[1] or drafter[2] or "", place.line)
        yield from _settings(_DRAFTER.sub("", match[0], count=1), _NAMES[engine], place.line)

    return Rule(engine, cue, re.compile(r"[\s\S]*"), read, begins, CONFIGURATION_WINDOW)


RULES: Final = (
    _rule("vLLM", "non-default args:"),
    _rule("vLLM", "args: Namespace("),
    _rule("vLLM", "with config:", before=("engine ", ") ")),
    _rule("SGLang", "server_args=ServerArgs(", begins=0),
)
