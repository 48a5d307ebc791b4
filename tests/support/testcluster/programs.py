"""Run a program to its end and hand back what it printed; a failure says which command, how it ended and why."""

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

RUN_TIMEOUT_S = 120.0
"""Seconds a command may take unless its caller knows better: none of the short ones takes 10 s on a busy machine."""


class ProgramError(RuntimeError):
    """A program ended with another exit code than 0, or not in time."""

    def __init__(self, argv: Sequence[str], reason: str, output: str) -> None:
        self.reason = reason
        self.output = output
        super().__init__(f"`{shlex.join(argv)}` {reason}\n{output.strip()}")


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | bytes | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = RUN_TIMEOUT_S,
) -> str:
    """Standard output of a command as text. Raises `ProgramError` with its standard error otherwise."""
    command = [str(part) for part in argv]
    data = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        done = subprocess.run(
            command, input=data, env=environ, cwd=cwd, timeout=timeout_s, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise ProgramError(command, f"did not end within {timeout_s:.0f} s", _text(late.stderr)) from late
    if done.returncode != 0:
        raise ProgramError(command, f"ended with exit code {done.returncode}", _text(done.stderr) or _text(done.stdout))
    return _text(done.stdout)


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Program:
    """A program that tests call, and what it finds in its environment beside the caller's own."""

    path: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    def __call__(
        self,
        *args: str | Path,
        input: str | bytes | None = None,  # noqa: A002  the name subprocess gives it
        timeout_s: float = RUN_TIMEOUT_S,
    ) -> str:
        """Standard output of one call. Raises `ProgramError`."""
        return run([self.path, *args], stdin=input, environ={**os.environ, **self.environ}, timeout_s=timeout_s)
