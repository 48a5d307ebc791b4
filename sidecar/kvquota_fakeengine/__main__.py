"""Run the fake engine: `python -m kvquota_fakeengine --port 8000`, with vLLM's flags where vLLM has one."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from kvquota_fakeengine.listener import CannotListenError
from kvquota_fakeengine.server import FakeEngineServer
from kvquota_fakeengine.settings import EngineSettings, Speech


@dataclass(frozen=True, slots=True)
class Options:
    """Where to listen, and the engine's settings."""

    host: str
    port: int
    control_host: str
    control_port: int | None
    settings: EngineSettings


def read_options(arguments: Sequence[str]) -> Options:
    """Later flags win over earlier ones, as in vLLM; what does not fit ends the program with a sentence."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        settings = _settings(given)
    except ValueError as error:
        parser.error(str(error))
    return Options(given.host, given.port, given.control_host, given.control_port, settings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kvquota_fakeengine", description=__doc__, allow_abbrev=False)
    defaults = EngineSettings()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", default=defaults.model)
    parser.add_argument("--served-model-name", help="the name that clients use; else that of --model")
    parser.add_argument("--block-size", type=int, default=defaults.block_tokens, help="tokens")
    parser.add_argument("--max-model-len", type=int, default=defaults.max_model_len, help="tokens")
    parser.add_argument("--max-num-seqs", type=int, default=defaults.max_sequences)
    parser.add_argument("--max-num-batched-tokens", type=int, default=defaults.max_batched_tokens)
    parser.add_argument("--kv-cache-memory-bytes", type=int, help="the pool's size; --num-gpu-blocks-override wins")
    parser.add_argument("--num-gpu-blocks-override", type=int, help="the pool's size, the null block included")
    parser.add_argument("--data-parallel-size", type=int, default=defaults.ranks, help="ranks with a pool each")
    parser.add_argument("--api-server-count", type=int, default=defaults.api_servers)
    parser.add_argument("--scheduling-policy", choices=["fcfs", "priority"], default="fcfs")
    parser.add_argument("--enable-prompt-tokens-details", action="store_true")
    parser.add_argument("--enable-prefix-caching", action="store_true", help="it always is")
    fake = parser.add_argument_group("what vLLM has no flag for")
    fake.add_argument("--speech", choices=list(Speech), default=defaults.speech, help="whose metrics it shows")
    fake.add_argument("--kv-bytes-per-token", type=int, default=defaults.kv_bytes_per_token)
    fake.add_argument("--decode-rate", type=float, default=defaults.decode_rate, help="tokens/s of one answer")
    fake.add_argument("--prefill-rate", type=float, default=defaults.prefill_rate, help="tokens/s of all prompts")
    fake.add_argument("--answer-tokens", type=int, default=defaults.answer_tokens, help="an answer's own length")
    fake.add_argument("--freeing-delay-ms", type=float, default=0.0, help="how long an aborted request holds blocks")
    fake.add_argument("--control-host", default="127.0.0.1")
    fake.add_argument("--control-port", type=int, help="a second address for /__fake alone")
    return parser


def _settings(given: argparse.Namespace) -> EngineSettings:
    return EngineSettings(
        model=given.served_model_name or given.model,
        block_tokens=given.block_size,
        blocks=_blocks(given),
        ranks=given.data_parallel_size,
        api_servers=given.api_server_count,
        speech=Speech(given.speech),
        max_model_len=given.max_model_len,
        max_sequences=given.max_num_seqs,
        max_batched_tokens=given.max_num_batched_tokens,
        by_priority=given.scheduling_policy == "priority",
        prompt_tokens_details=given.enable_prompt_tokens_details,
        decode_rate=given.decode_rate,
        prefill_rate=given.prefill_rate,
        answer_tokens=given.answer_tokens,
        freeing_delay_seconds=given.freeing_delay_ms / 1000,
        kv_bytes_per_token=given.kv_bytes_per_token,
    )


def _blocks(given: argparse.Namespace) -> int:
    if given.num_gpu_blocks_override is not None:
        return int(given.num_gpu_blocks_override)
    if given.kv_cache_memory_bytes is not None:
        return int(given.kv_cache_memory_bytes // (given.kv_bytes_per_token * given.block_size))
    return EngineSettings().blocks


async def serve(options: Options) -> None:
    """Answer until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = FakeEngineServer(
        options.settings,
        host=options.host,
        port=options.port,
        control_host=options.control_host,
        control_port=options.control_port,
    )
    async with server:
        sys.stdout.write(f"serving {options.settings.model} on {server.base_url}\n")
        sys.stdout.flush()
        await stop.wait()


def main(arguments: Sequence[str]) -> int:
    """Run it; 0 when it was told to end, 2 when it cannot begin."""
    try:
        asyncio.run(serve(read_options(arguments)))
    except CannotListenError as error:
        sys.stderr.write(f"kvquota_fakeengine: {error}; give another --host, --port or --control-port\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
