"""Whether the sidecar keeps its size over hours: `make soak FOR=86400` (seconds), with ARGS for options.

Runs the compiled sidecar before the fake engine under a mixed load of a few requests a second: answers, streams that
are read to their end, left, and reset, requests that are refused for each of the usual reasons, bodies of 100 kB,
connections that say nothing. Prints a line each minute: memory, descriptors and threads of the process that serves, and
what it counts itself (its asyncio tasks are those of connections and requests). Ends with the slope of the memory over
the second half, where that has two lines, and with 1 where something was not given back after the load had ended.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import builds
from operatorbench.arguments import per_second, seconds

from raw_client import RawClient
from sidecar_program import Program, engine, files_of, mounted, start
from sidecar_rig import BATCH, KEYS, OTHER, SEARCH, chat, completion, config, get, post, share
from testcluster.processes import Keeper
from wholepath import gauge

BLOCKS: Final = 1024
CALM_SECONDS: Final = 15.0  # after the load: longer than anything that it left is waited for
GIVEN_BACK: Final = {  # what stands at 0 when nothing runs
    "running": "kvquota_requests_running",
    "waiting": "kvquota_requests_waiting",
    "reserved": "kvquota_pool_reserved_blocks",
    "clients": "kvquota_client_connections",
}
SPARE_DESCRIPTORS: Final = 8  # idle connections to the engine, which are kept for a while

Act = Callable[[RawClient], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Size:
    """Of the process that serves. `rss`: KiB."""

    at: float
    rss: int
    descriptors: int
    threads: int


async def answered(client: RawClient, request: bytes) -> str:
    got = await client.ask(request)
    return str(got.status) if got.complete else f"{got.status} cut"


async def kept(client: RawClient) -> str:
    """Several requests on one connection."""
    told = [await answered(client, post(chat(max_tokens=each))) for each in (1, 8, 32)]
    return told[-1] if len(set(told)) == 1 else "differs"


async def left(client: RawClient) -> str:
    """A stream whose client goes after its beginning."""
    client.send(post(chat(stream=True, max_tokens=2000, ignore_eos=True)))
    await client.line(b"data: ")
    return "left"


async def reset(client: RawClient) -> str:
    client.send(post(chat(stream=True, max_tokens=2000, ignore_eos=True)))
    await client.line(b"data: ")
    client.reset()
    return "reset"


async def half(client: RawClient) -> str:
    """A request that does not come to its end."""
    client.send(post(chat(text="x" * 5000))[:3000])
    await asyncio.sleep(0.2)
    return "half"


async def silent(client: RawClient) -> str:
    await asyncio.sleep(0.2)
    return "silent"


def asking(request: Callable[[], bytes]) -> Act:
    return lambda client: answered(client, request())


def a_token() -> int:
    """Of a prompt that few others have."""
    return random.randrange(1, 30_000)


def long_completion(blocks: int) -> bytes:
    """It takes a second, so that another one like it is refused meanwhile."""
    return completion(blocks, prompt=a_token(), max_tokens=400, ignore_eos=True)


ACTS: Final[dict[str, tuple[int, Act]]] = {  # how often, of all
    "answer": (20, asking(lambda: post(chat(text=f"hello {a_token()}")))),
    "stream": (20, asking(lambda: post(chat(stream=True, max_tokens=200, ignore_eos=True)))),
    "kept": (10, kept),
    "prompt": (10, asking(lambda: post(completion(8, prompt=a_token()), "/v1/completions"))),
    "100 kB": (3, asking(lambda: post(chat(metadata={"of": "x" * 100_000})))),
    "left": (10, left),
    "reset": (5, reset),
    "busy tenant": (10, asking(lambda: post(long_completion(60), "/v1/completions", tenant=BATCH))),
    "never fits": (5, asking(lambda: post(completion(120, prompt=a_token()), "/v1/completions", tenant=BATCH))),
    "wrong key": (3, asking(lambda: post(chat()).replace(b"kvq-", b"kvx-"))),
    "no quota": (2, asking(lambda: post(chat(), tenant=OTHER))),
    "no JSON": (3, asking(lambda: post(b'{"model": '))),
    "models": (2, asking(lambda: get("/v1/models", f"Authorization: Bearer {KEYS[SEARCH]}"))),
    "half": (2, half),
    "silent": (2, silent),
}


class Soak:
    """The load on one sidecar, and what came of it."""

    def __init__(self, program: Program, rate: float) -> None:
        where = urlsplit(program.url)
        self._host, self._port = str(where.hostname), int(where.port or 0)
        self._program = program
        self._rate = rate
        self.outcomes: Counter[str] = Counter()
        self.sizes: list[Size] = []

    async def run(self, seconds: float, every: float) -> None:
        """Print a line each `every` seconds for so many seconds, and one when all is calm again."""
        began, child = time.monotonic(), self._program.child()
        async with asyncio.TaskGroup() as tasks:
            told = tasks.create_task(self._tell(began, child, every))
            while (now := time.monotonic() - began) < seconds:
                tasks.create_task(self._act())
                await asyncio.sleep(min(random.expovariate(self._rate), seconds - now))
            told.cancel()
        await asyncio.sleep(CALM_SECONDS)
        self._look(began, child)
        if self._program.child() != child:
            self.outcomes["the child was replaced"] += 1

    async def _tell(self, began: float, child: int, every: float) -> None:
        while True:
            await asyncio.to_thread(self._look, began, child)
            await asyncio.sleep(every)

    def _look(self, began: float, child: int) -> None:
        size = size_of(child, time.monotonic() - began)
        self.sizes.append(size)
        counted = " ".join(f"{name} {value:.0f}" for name, value in self.counted().items())
        print(
            f"{size.at / 60:7.1f} min  {size.rss / 1024:7.2f} MiB  {size.descriptors:4} descriptors  {size.threads:3}"
            f" threads  {self.outcomes.total():8} requests  {counted}",
            flush=True,
        )

    def counted(self) -> dict[str, float]:
        """What the sidecar says that it holds."""
        told = "\n".join(self._program.metrics)
        return {name: gauge(told, metric) for name, metric in GIVEN_BACK.items()}

    async def _act(self) -> None:
        [name] = random.choices(list(ACTS), [often for often, _ in ACTS.values()])
        outcome = "no connection"
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with await RawClient.open(self._host, self._port) as client:
                outcome = await ACTS[name][1](client)
        self.outcomes[f"{name}: {outcome}"] += 1


def size_of(pid: int, at: float) -> Size:
    status = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith(("VmRSS", "Threads"))
    )
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Size(at, int(status["VmRSS"].split()[0]), descriptors, int(status["Threads"]))


def slope(sizes: Sequence[Size]) -> float | None:
    """KiB of memory an hour, by least squares over the second half of the time; None: it was looked at only once."""
    later = [each for each in sizes if each.at >= sizes[-1].at / 2]
    mean_at, mean = sum(each.at for each in later) / len(later), sum(each.rss for each in later) / len(later)
    spread = sum((each.at - mean_at) ** 2 for each in later)
    return 3600 * sum((each.at - mean_at) * (each.rss - mean) for each in later) / spread if spread else None


def not_given_back(soak: Soak) -> list[str]:
    """What is held although nothing runs any more."""
    held = [f"{name} {value:.0f}" for name, value in soak.counted().items() if value]
    first, last = soak.sizes[0], soak.sizes[-1]
    if last.descriptors > first.descriptors + SPARE_DESCRIPTORS:
        held.append(f"{last.descriptors} descriptors, {first.descriptors} at the start")
    return held + [f"{count} times {each}" for each, count in soak.outcomes.items() if "cut" in each or "child" in each]


def started(keeper: Keeper, folder: Path, build: builds.Build) -> Program:
    sizes = ("--num-gpu-blocks-override", str(BLOCKS), "--block-size", "16", "--max-model-len", "4096")
    behind = engine(keeper, folder, *sizes, "--decode-rate", "400", "--answer-tokens", "16")
    shares = (share(SEARCH, soft=400, hard=900), share(BATCH, soft=0, hard=100, concurrent=4))
    files = files_of(mounted(folder, config(*shares, blocks=BLOCKS)))
    where = builds.environment(build)["PYTHONPATH"]
    return start(keeper, folder, "--engine", behind, *files, PYTHONPATH=where)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    cli = argparse.ArgumentParser(
        prog="tests/bench/soak.py", description="Run the sidecar for long under a mixed load."
    )
    cli.add_argument("--seconds", type=seconds, default=600.0, help="of load (%(default)g)")
    cli.add_argument("--rate", type=per_second, default=10.0, help="requests a second (%(default)g)")
    cli.add_argument("--every", type=seconds, default=60.0, help="seconds between two lines (%(default)g)")
    cli.add_argument("--interpreted", action="store_const", const="interpreted", default="compiled", dest="build")
    return cli.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    given, keeper = parsed(arguments), Keeper()
    with tempfile.TemporaryDirectory(prefix="kvquota-soak-") as name:
        try:
            soak = Soak(started(keeper, Path(name), given.build), given.rate)
            asyncio.run(soak.run(given.seconds, given.every))
            held = not_given_back(soak)
        finally:
            keeper.stop()
    for outcome, count in sorted(soak.outcomes.items()):
        print(f"{count:8}  {outcome}")
    rise = slope(soak.sizes[:-1])
    print(
        "memory: too few lines for a slope" if rise is None else f"memory: {rise:+.0f} KiB an hour over the second half"
    )
    print("not given back: " + (", ".join(held) or "nothing"))
    return 1 if held else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
