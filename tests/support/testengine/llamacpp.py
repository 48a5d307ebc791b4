"""Start llama.cpp's real server on the CPU with the tiny model."""

import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testcluster.processes import Keeper, free_port, wait_until
from testengine.environment import llamacpp_python
from testengine.tiny_gguf import tiny_gguf

_SERVER = Path(__file__).with_name("llamacpp_server.py")
_START_SECONDS = 120.0  # it needs one on idle cores
# Several threads of it wait for each other by spinning, which on a busy machine takes seconds for a token.
_HERE = ("--alias", "tiny", "--n-gpu-layers", "0", "--no-warmup", "--threads", "1", "--threads-batch", "1")


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """A server on `port`; every slot has room for `slot_tokens`."""

    port: int
    slots: int
    slot_tokens: int

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def running_llamacpp(folder: Path, *, slots: int = 2, slot_tokens: int = 4096) -> Iterator[LlamaCpp]:
    """The server while the block lasts; its log is in `folder`."""
    server = LlamaCpp(free_port(), slots, slot_tokens)
    sizes = ["--port", str(server.port), "--parallel", str(slots), "--ctx-size", str(slots * slot_tokens)]
    with started_llamacpp(folder, server, ["--host", "127.0.0.1", *sizes, "--metrics", "--slots"]):
        yield server


@contextmanager
def started_llamacpp(folder: Path, server: LlamaCpp, arguments: Sequence[str]) -> Iterator[None]:
    """The same as `server`, by these arguments of llama-server and behind them what this machine needs."""
    keeper = Keeper()
    try:
        log = folder / "llamacpp.log"
        words = [*arguments, "--model", str(tiny_gguf()), *_HERE]
        started = keeper.start("llama.cpp", [llamacpp_python(), _SERVER, *words], log)
        wait_until(lambda: _is_healthy(server) or not started.alive, timeout_s=_START_SECONDS)
        assert _is_healthy(server), log.read_text(errors="replace")[-4000:]
        yield
    finally:
        keeper.stop()


def _is_healthy(server: LlamaCpp) -> bool:
    try:
        with urllib.request.urlopen(f"{server.base_url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
