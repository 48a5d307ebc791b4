"""The engines' own Python environments, each built once into the user's cache from a lock file.

`python -m testengine.environment` builds them ahead of the tests. A finished environment carries a mark and is used
as it is, without the network; one that was interrupted lacks the mark and is built again from nothing.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testengine.cache import cache_root

_COMPLETE = ".complete"

# Half an hour: about 3 GB are fetched, which took 2 minutes on a fast line.
_INSTALL_SECONDS = 1800
# Smaller parts pass by too quickly to be worth a line.
_WORTH_A_LINE_MB = 50.0
_LINE_CHARACTERS = 120  # the last line names every package


class EnvironmentBuildError(RuntimeError):
    """The environment could not be built; the message ends with what the installer said last."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An engine and what its environment takes, in words for whoever waits."""

    name: str
    lock: Path
    takes: str


_LOCKS = Path(__file__).resolve().parents[3] / "requirements"
_VLLM = _Wanted("vLLM", _LOCKS / "engine.lock", "6 GB on disk, 2 to 10 minutes")
_LLAMACPP = _Wanted("llama.cpp", _LOCKS / "llamacpp.lock", "150 MB on disk, 15 seconds")


def engine_python() -> Path:
    """The interpreter of vLLM's finished environment, which is built first where it is missing."""
    return _python_of(_VLLM)


def llamacpp_python() -> Path:
    """The same for llama.cpp."""
    return _python_of(_LLAMACPP)


def _python_of(wanted: _Wanted) -> Path:
    digest = hashlib.sha256(wanted.lock.read_bytes()).hexdigest()[:16]
    directory = cache_root() / "engine" / digest
    python = directory / "bin" / "python"
    if (directory / _COMPLETE).exists():
        return python
    with _only_builder(directory):
        if not (directory / _COMPLETE).exists():
            _build(wanted, directory, python)
    return python


@contextmanager
def _only_builder(directory: Path) -> Iterator[None]:
    """Keep other processes from building the same environment until this one is done."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(wanted: _Wanted, directory: Path, python: Path) -> None:
    print(f"Building {wanted.name}'s environment in {directory} (once; about {wanted.takes})", flush=True)
    started = time.monotonic()
    shutil.rmtree(directory, ignore_errors=True)
    # At its final place, since the scripts of an environment name their interpreter by its full path.
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True, timeout=120)
    _install(python, wanted.lock)
    (directory / _COMPLETE).touch()
    print(f"{wanted.name}'s environment is ready after {time.monotonic() - started:.0f} s", flush=True)


def _install(python: Path, lock: Path) -> None:
    """Install exactly what the lock file names, wheels only, every one by its hash."""
    pinned = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(lock)]
    quiet = ["--no-input", "--disable-pip-version-check", "--no-compile", "--progress-bar", "off"]
    command = [str(python), "-m", "pip", "install", *quiet, *pinned]
    said: list[str] = []
    deadline = time.monotonic() + _INSTALL_SECONDS
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as installer:
        assert installer.stdout is not None
        for line in installer.stdout:
            said.append(line.rstrip())
            if _is_worth_a_line(line):
                print(line[:_LINE_CHARACTERS].rstrip(), flush=True)
            if time.monotonic() > deadline:
                installer.kill()
    if installer.returncode != 0:
        last_words = "\n".join(said[-15:])
        raise EnvironmentBuildError(
            f"pip ended with {installer.returncode} while it installed {lock.name}. Check that the package index"
            f" is reachable and that this is Python 3.11 (it is {sys.version.split()[0]}).\n{last_words}"
        )


def _is_worth_a_line(line: str) -> bool:
    """Whether the installer tells of a large download, or of the minute of silence at the end."""
    words = line.replace("(", " ").replace(")", " ").split()
    if line.startswith("Installing collected"):
        return True
    return "Downloading" in line and words[-1:] == ["MB"] and float(words[-2]) >= _WORTH_A_LINE_MB


if __name__ == "__main__":
    print(engine_python())
    print(llamacpp_python())
