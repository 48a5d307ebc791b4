"""Ask the real vLLM for a plan, from the outside of its environment."""

import json
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from testengine.cache import cache_root
from testengine.environment import engine_python

_SUPPORT = Path(__file__).resolve().parents[2]

Document = dict[str, Any]


class OracleError(RuntimeError):
    """The process that asks vLLM ended; the message says where its log is."""


class Oracle:
    """A context manager: inside, `ask` has vLLM plan for one platform ("cpu", "cuda-sm90" or "cuda-sm80").

    Ready after about 20 s, then 1 to 5 s a question. One question at a time.
    """

    def __init__(self, platform: str, log: Path) -> None:
        self._platform = platform
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(engine_python()), "-m", "testengine.oracle.serving", self._platform],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_environment(),
            )
        self._read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def ask(self, config: Document, arguments: Document) -> Document:
        """`resolved` and `result` as in a recorded row, or `error` with the class and message of the refusal."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"config": config, "args": arguments}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Document:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise OracleError(f"the process that asks vLLM ended; its log is {self._log}")
        document: Document = json.loads(line)
        return document


def start_engines(folder: Path, seconds: float) -> None:
    """Have the engine of every question in the folder started and ended, as `starting` says."""
    with (folder / "starting.log").open("wb") as log:
        subprocess.run(
            [str(engine_python()), "-m", "testengine.oracle.starting", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=True,
            timeout=seconds,
            # In one process, since every further one takes 10 s to import vLLM.
            env=_environment() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        )


def _environment() -> dict[str, str]:
    """The caller's environment without what would steer vLLM, Python or torch, and with all networking off."""
    steering = ("VLLM_", "HF_", "PYTHON", "TORCH", "OMP_", "VIRTUAL_ENV", "CUDA_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    return kept | {
        "PYTHONPATH": str(_SUPPORT),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CACHE_ROOT": str(cache_root() / "vllm-oracle"),
    }
