"""Stands for the program of an engine's image in a pod: hands on what the fake engine understands of its arguments.

It ends where a real one would serve TLS, which the fake one cannot.
"""

import argparse
import os
import runpy
import sys
from collections.abc import Sequence

KV_BYTES_PER_TOKEN = 128 * 1024
"""Of Llama 3.1 8B, which all pools of vLLM in tests/data/manifests serve."""


def fake_arguments(arguments: Sequence[str]) -> list[str]:
    """What the fake engine is started with. Raises SystemExit where the engine would serve TLS."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--host", "--port", "--kv-cache-memory-bytes", "--scheduling-policy", "--max-model-len"):
        parser.add_argument(name)
    for name in ("--ssl-certfile", "--ssl-keyfile"):
        parser.add_argument(name, default="")
    parser.add_argument("--block-size", default="16")
    parser.add_argument("--ctx-size", type=int)
    parser.add_argument("--parallel", type=int, default=1)
    given, _ = parser.parse_known_args(arguments)
    if given.ssl_certfile or given.ssl_keyfile:
        raise SystemExit("would serve TLS")
    common = ["--host", given.host, "--port", given.port, "--model", os.environ["MODEL"], "--answer-tokens", "4"]
    return common + (_of_llamacpp(given) if given.ctx_size else _of_vllm(given))


def _of_vllm(given: argparse.Namespace) -> list[str]:
    return [
        *("--kv-cache-memory-bytes", given.kv_cache_memory_bytes, "--kv-bytes-per-token", str(KV_BYTES_PER_TOKEN)),
        *("--block-size", given.block_size, "--max-model-len", given.max_model_len),
        *("--scheduling-policy", given.scheduling_policy),
    ]


def _of_llamacpp(given: argparse.Namespace) -> list[str]:
    """In cells of one token; each slot has its part of the context."""
    each = given.ctx_size // given.parallel
    return [
        *("--speech", "llamacpp", "--max-num-seqs", str(given.parallel), "--max-model-len", str(each)),
        *("--block-size", "1", "--num-gpu-blocks-override", str(given.ctx_size)),
    ]


if __name__ == "__main__":
    sys.argv = ["kvquota_fakeengine", *fake_arguments(sys.argv[1:])]
    runpy.run_module("kvquota_fakeengine", run_name="__main__")
