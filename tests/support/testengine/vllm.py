"""Start the real vLLM on the CPU with the tiny model, and make sure that it is gone afterwards."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from testengine.cache import cache_root
from testengine.environment import engine_python
from testengine.port import EngineUnderTest
from testengine.tiny_model import KV_BYTES_PER_TOKEN, tiny_model

_GUARD = Path(__file__).with_name("guard.py")
_SERVE = Path(__file__).with_name("serve.py")

# Ready after 20 to 25 s on two idle cores; other work on them can make it several times as long.
_START_SECONDS = 600.0
# vLLM aborts what runs and stops its workers within about 3 s of being asked.
_STOP_SECONDS = 15.0
# The cause of an engine core that failed stands this far above the end.
_LOG_TAIL_LINES = 150


class EngineStartError(RuntimeError):
    """vLLM ended or stayed unhealthy; the message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmArguments:
    """`kv_cache_bytes` is the planned size of the pool; `extra` goes to the command line as it is.

    `api_servers`: processes that listen on the one port, 1 for the usual single one.

    The default pool is 512 blocks of 32 KiB: eight requests of the maximum length fill it.
    """

    model: str = "tiny"
    kv_cache_bytes: int = 16 * 1024 * 1024
    block_tokens: int = 32  # the CPU kernels take multiples of 32
    max_model_len: int = 2048
    api_servers: int = 1
    extra: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def blocks(self) -> int:
        """The blocks that vLLM makes of the bytes, the null block included."""
        return self.kv_cache_bytes // (KV_BYTES_PER_TOKEN * self.block_tokens)


class VllmEngine:
    """A context manager: inside, the engine answers at `under_test.base_url`; after it, no process of it is left."""

    def __init__(self, arguments: VllmArguments | None = None) -> None:
        self.arguments = arguments or VllmArguments()
        self._directory = Path(tempfile.mkdtemp(prefix="kvquota-vllm-"))
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def under_test(self) -> EngineUnderTest:
        return EngineUnderTest(
            name="vllm",
            base_url=f"http://127.0.0.1:{self._port}",
            model=self.arguments.model,
            block_tokens=self.arguments.block_tokens,
            blocks=self.arguments.blocks,
            max_model_len=self.arguments.max_model_len,
        )

    def log(self) -> str:
        """Everything that the engine has printed so far."""
        return self._log_file.read_text(encoding="utf-8", errors="replace")

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Start it, for the first time or again on the same port, and wait until it is healthy."""
        command = [sys.executable, str(_GUARD), str(engine_python()), *self._command_line()]
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                start_new_session=True,
            )
        try:
            self._wait_until_healthy()
        except BaseException:
            self._stop()
            raise

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all its processes, and do not wait for what comes of it."""
        assert self._process is not None
        _signal_group(self._process, number)

    def end(self, number: signal.Signals) -> None:
        """End it as `number` does; nothing of it is left, and it may be started again."""
        self.send(number)
        self._end()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def _log_file(self) -> Path:
        return self._directory / "vllm.log"

    def _command_line(self) -> list[str]:
        wanted = self.arguments
        options = {
            "--model": str(tiny_model()),
            "--served-model-name": wanted.model,
            "--load-format": "dummy",
            "--dtype": "bfloat16",
            "--block-size": str(wanted.block_tokens),
            "--kv-cache-memory-bytes": str(wanted.kv_cache_bytes),
            "--max-model-len": str(wanted.max_model_len),
            "--host": "127.0.0.1",
            "--port": str(self._port),
        }
        # Compiling the model would take half a minute and make no difference to what is tested.
        switches = ["--enable-prompt-tokens-details", "--enforce-eager"]
        flat = [word for option in options.items() for word in option]
        if wanted.api_servers == 1:
            return ["-m", "vllm.entrypoints.openai.api_server", *flat, *switches, *wanted.extra]
        model, servers = flat.pop(1), ["--api-server-count", str(wanted.api_servers)]
        # -P: modules beside the script are no modules of the engine's.
        return ["-P", str(_SERVE), "serve", model, *flat[1:], *switches, *servers, *wanted.extra]

    def _environment(self) -> dict[str, str]:
        """The caller's environment without what would steer vLLM, Python or torch, and with all networking off."""
        steering = ("VLLM_", "HF_", "PYTHON", "TORCH", "OMP_", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
        settings = {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # Several threads wait for each other by spinning: on a busy machine that is a token in a third of a second.
            "OMP_NUM_THREADS": "1",
            "VLLM_CACHE_ROOT": str(cache_root() / "vllm"),
            "HF_HOME": str(self._directory / "huggingface"),
        }
        return {**kept, **settings, **self.arguments.environment}

    def _wait_until_healthy(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise EngineStartError(f"vLLM ended with {self._process.returncode}:\n{self._log_tail()}")
            if self._is_healthy():
                return
            time.sleep(0.2)
        raise EngineStartError(f"vLLM was not healthy after {_START_SECONDS:.0f} s:\n{self._log_tail()}")

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.under_test.base_url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _log_tail(self) -> str:
        return "\n".join(self.log().splitlines()[-_LOG_TAIL_LINES:])

    def _stop(self) -> None:
        self._end()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _end(self) -> None:
        """Ask the whole group to end, then make it: closing the pipe lets the guard kill whoever is left."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        _signal_group(process, signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.stdin.close()
            _signal_group(process, signal.SIGKILL)
            process.wait(_STOP_SECONDS)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """The guard leads the group under its own id; once all of it is gone there is nobody to signal."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
