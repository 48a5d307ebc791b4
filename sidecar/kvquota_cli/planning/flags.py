"""The options of `kvquota plan`. Light: it imports no planner.

Everything that is not given is None, so that what was asked for and what is a default can be told apart; an option that
is given twice is refused, since nobody can know which one was meant.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kvquota_cli.parsing import Once, refuse_second
from kvquota_cli.planning import sizes

ENGINES: Final = {"vllm": "vLLM", "sglang": "SGLang", "llama.cpp": "LlamaCpp", "tensorrt-llm": "TensorRTLLM"}
PLATFORMS: Final = ("cuda-sm80", "cuda-sm90", "cuda-sm100", "cpu")

DESCRIPTION: Final = """\
How the memory of one card is divided for a model, how many KV blocks an engine makes of its part, and how many requests
of which length fit. By the engine's own rules: a model, type or field that they are not known for is an error.

  kvquota plan --model llama-3.1-8b --gpu-memory 79.18GiB --max-model-len 32768
  kvquota plan --model config.json --engine vllm --engine-version 0.32 --tp 8 --kv-memory 19.47GiB -o json
  kvquota plan --model pool.yaml --kv-dtype fp8          what would change in this ModelPool?
  kvquota plan --model config.json --from-log engine.log where do plan and engine differ?

Sizes are of one GPU. With --kv-memory neither the weights nor the card need to be known. What is not given takes the
default of that version of the engine on that platform, and is listed under assumptions.
"""
EPILOG: Final = """\
exit codes:
  0  planned; with --from-log: and the log has figures to compare, which agree
  1  --from-log: plan and engine differ
  2  wrong usage or input
  3  no plan: the model or something of the engine is not known, or it does not fit on the card. The reason is one
     sentence on stderr; where it does not fit, the ways out are printed with their numbers

Without a card the question is what the engine makes of the bytes of --kv-memory: 0, and "fits" in the JSON says whether
the longest request does.
"""


def add(command: argparse.ArgumentParser) -> None:
    """Declare the options."""
    command.usage = "kvquota plan --model FILE|PRESET [--gpu-memory SIZE | --kv-memory SIZE] [option ...]"
    command.epilog = EPILOG
    _model(command.add_argument_group("model"))
    _engine(command.add_argument_group("engine, as it is or will be started"))
    _card(command.add_argument_group("card"))
    _output(command.add_argument_group("output"))


class Switch(argparse.BooleanOptionalAction):
    """--x or --no-x; both, or one of them twice, is an error."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """Store it. Raises argparse.ArgumentError."""
        refuse_second(self, namespace, option)
        super().__call__(parser, namespace, values, option)


def _model(group: argparse._ArgumentGroup) -> None:
    _once(group, "--model", "FILE|PRESET", "a Hugging Face config.json, a file with a ModelPool, or a preset's name")
    _once(group, "--pool", "NAME", "which ModelPool, where the file has several")
    _once(group, "--weight-dtype", "D", "how the weights are stored: bf16, fp8, int4, nvfp4, q4_k, ...")
    _once(group, "--dtype", "D", "the type that the model computes in")


def _engine(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--engine", choices=ENGINES, action=Once, help="(vllm)")
    _once(group, "--engine-version", "V", "(the newest that is known)")
    group.add_argument("--platform", choices=PLATFORMS, action=Once, help="(by the card's memory)")
    _once(group, "--tp", "N", "GPUs that share each layer", type=sizes.count)
    _once(group, "--pp", "N", "stages that the layers are divided into", type=sizes.count)
    _once(group, "--dp", "N", "copies, each with a KV cache of its own", type=sizes.count)
    _once(group, "--dcp", "N", "GPUs of a tensor group that share the tokens of a sequence", type=sizes.count)
    _once(group, "--kv-dtype", "D", "type of the KV cache: auto, bf16, fp8, q8_0, ...")
    _once(group, "--block-size", "B", "tokens in one KV block", type=sizes.count)
    _once(group, "--max-model-len", "L", "longest request in tokens; auto: the longest that fits", type=sizes.length)
    _once(group, "--max-num-batched-tokens", "T", "tokens in one step", type=sizes.count)
    _once(group, "--max-num-seqs", "S", "sequences in one step", type=sizes.count)
    _once(group, "--num-speculative-tokens", "N", "guessed per step", type=sizes.count_or_none)
    _once(group, "--draft-layers", "N", "of the drafter that keep a KV cache", type=sizes.count_or_none)
    _once(group, "--speculative-config", "JSON", "the drafter, as vLLM takes it")
    _switch(group, "--prefix-caching", "keep blocks of finished requests")
    _switch(group, "--async-scheduling", "plan a step while one runs")
    group.add_argument("--disable-hybrid-kv-cache-manager", action="store_true", help="keep every layer's whole past")
    _once(group, "--mamba-ssm-dtype", "D", "type of recurrent state")
    _once(group, "--slots", "N", "sequences that llama.cpp divides its context over", type=sizes.count)
    _switch(group, "--kv-unified", "llama.cpp's slots share one cache")
    _switch(group, "--mla", "llama.cpp: the model's file has the tensors of latent attention (default: it has)")


def _card(group: argparse._ArgumentGroup) -> None:
    _once(group, "--gpu-memory", "SIZE", "of one card, as its driver reports it: 79.18GiB", type=sizes.memory)
    _once(group, "--gpu-memory-utilization", "F", "part of the card that the engine may use", type=sizes.fraction)
    _once(group, "--kv-memory", "SIZE", "for the KV cache on one GPU, as it is given to the engine", type=sizes.memory)
    _once(group, "--weights", "SIZE", "where they are known (default: counted from the config)", type=sizes.size)
    _once(group, "--activation", "SIZE", "peak of a step, where it is known (default: estimated)", type=sizes.size)
    _once(group, "--other", "SIZE", "CUDA context, graphs, communication (default: estimated)", type=sizes.size)
    _once(
        group,
        "--gpu-count",
        "N",
        "with -o yaml: cards in one pod (default: what the parallelism needs)",
        type=sizes.count,
    )


def _output(group: argparse._ArgumentGroup) -> None:
    _once(group, "--context", "LIST", "lengths of requests to count: 1k,8k,32k,128k,1m", type=sizes.contexts)
    _once(group, "--from-log", "FILE", "an engine's start-up log: where do plan and engine differ?", type=Path)
    group.add_argument("-o", "--output", choices=("table", "json", "yaml"), action=Once, help="(table)")


def _once(group: argparse._ArgumentGroup, option: str, metavar: str, text: str, **settings: Any) -> None:
    group.add_argument(option, metavar=metavar, action=Once, help=text, **settings)


def _switch(group: argparse._ArgumentGroup, option: str, text: str) -> None:
    group.add_argument(option, action=Switch, help=text)


def given(arguments: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Those of the options that were given, by their names in the namespace."""
    return {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
