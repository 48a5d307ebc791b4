"""What the sidecar's own Python costs: `python tests/bench/path_speed.py [small|refuse|chunk] [--interpreted]`.

Prints CPU microseconds for a small request, a refusal and a streamed chunk, from a client's bytes to the engine's and
back, without a socket: so a neighbour on the machine matters less, and what the kernel and uvloop cost (16 us for a
request where nginx takes 17) is not in it. The compiled sidecar and the interpreted one are measured in turns.
`--profile` prints where the time goes in the interpreted one; calls look dearer there than they are.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import io
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, cast

import builds
import site_files

from kvquota_sidecar import compiled
from kvquota_sidecar.proxy.client_side import ClientConnection
from kvquota_sidecar.proxy.engine_side import EngineLink
from kvquota_sidecar.settings import read_settings
from kvquota_sidecar.sidecar import Sidecar

Kind = Literal["small", "refuse", "chunk"]
KINDS: Final[tuple[Kind, ...]] = ("small", "refuse", "chunk")
AT_ONCE = 64  # as in proxybench
TOKENS = 200  # of a stream
ROUNDS = {"small": 40, "refuse": 40, "chunk": 1}  # in one sample
SAMPLES = 7  # the least of them counts
PROMPT = "the quick brown fox jumps over " * 16

EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"token "},"logprobs":null,"finish_reason":null}]}\n\n'
)
LAST = b'data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":200}}\n\ndata: [DONE]\n\n'
BODY = (
    b'{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"Hello."},"finish_reason":"stop"}],"usage":{"prompt_tokens":100,'
    b'"total_tokens":112,"completion_tokens":12,"prompt_tokens_details":null}}'
)
HEAD = b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: "


class Wire:
    """A transport that leads nowhere."""

    def write(self, data: bytes) -> None:
        self.last = data

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", 1) if name in {"peername", "sockname"} else None


def request(kind: Kind) -> bytes:
    options = '"stream":true,"stream_options":{"include_usage":true},' if kind == "chunk" else ""
    tokens = TOKENS if kind == "chunk" else 16
    body = f'{{"model":"m",{options}"max_tokens":{tokens},"messages":[{{"role":"user","content":"{PROMPT}"}}]}}'
    head = ("POST /v1/chat/completions HTTP/1.1", "Host: a", "User-Agent: x", f"Authorization: Bearer {site_files.KEY}")
    return "\r\n".join([*head, "Content-Type: application/json", f"Content-Length: {len(body)}", "", body]).encode()


def answers(kind: Kind) -> list[bytes]:
    """What the engine sends for one request, read by read; nothing where it is refused."""
    if kind == "refuse":
        return []
    if kind == "small":
        return [HEAD + b"application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)]
    chunk = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
    end = b"%x\r\n%b\r\n0\r\n\r\n" % (len(LAST), LAST)
    return [HEAD + b"text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n", *[chunk] * TOKENS, end]


def assembled(folder: Path, kind: Kind) -> tuple[list[ClientConnection[Any]], list[EngineLink]]:
    """A sidecar that listens nowhere, with clients and engine connections on wires."""
    site_files.write(folder, site_files.NOTHING if kind == "refuse" else site_files.PLENTY)
    files = ["--config", str(folder / "config.json"), "--identity", str(folder)]
    places = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--engine", "http://127.0.0.1:9"]
    sidecar = Sidecar(read_settings([*places, *files], {}, memory_bytes=None), log=io.StringIO())
    sidecar._files.look()
    clients = [ClientConnection(sidecar._traffic_hub) for _ in range(AT_ONCE)]
    links = [EngineLink(sidecar._pool) for _ in range(AT_ONCE)]
    for connection in (*clients, *links):
        connection.connection_made(cast("asyncio.Transport", Wire()))
    for link in links:
        sidecar._pool.idled(link)
    return clients, links


async def measure(kind: Kind, folder: Path, *, profile: bool) -> None:
    clients, links = assembled(folder, kind)
    asked, told = request(kind), answers(kind)

    def rounds() -> None:
        for _ in range(ROUNDS[kind]):
            for client in clients:
                client.data_received(asked)
            for data in told:
                for link in links:
                    link.data_received(data)

    rounds()
    if profile:
        show_profile(rounds)
        return
    units = ROUNDS[kind] * AT_ONCE * (TOKENS if kind == "chunk" else 1)
    print(f"{compiled.build():12} {kind:8} {min(cpu_seconds(rounds) for _ in range(SAMPLES)) / units * 1e6:6.2f} us")


def cpu_seconds(work: Callable[[], None]) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before


def show_profile(work: Callable[[], None]) -> None:
    profiler = cProfile.Profile()
    profiler.runcall(work)
    pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(40)


def main(arguments: list[str]) -> None:
    cli = argparse.ArgumentParser(prog="path_speed.py", description="Measure what the sidecar's own Python costs.")
    cli.add_argument("kind", nargs="?", choices=KINDS, help="all where none is named")
    cli.add_argument("--interpreted", action="store_true", help="only the sources as they stand")
    cli.add_argument("--profile", action="store_true", help="show where the time goes in the sources as they stand")
    cli.add_argument("--here", action="store_true", help="in this process, the one that PYTHONPATH names")
    options = cli.parse_args(arguments)
    for kind in [options.kind] if options.kind else KINDS:
        if options.here or options.profile:
            with tempfile.TemporaryDirectory(prefix="kvquota-bench-") as folder:
                asyncio.run(measure(kind, Path(folder), profile=options.profile))
            continue
        for build in ("interpreted",) if options.interpreted else builds.BUILDS:
            subprocess.run([sys.executable, __file__, kind, "--here"], env=builds.environment(build), check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
