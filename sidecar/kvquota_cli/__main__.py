"""The command line `kvquota`, also reached as `kubectl kvquota`."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

from kvquota_cli import options
from kvquota_cli.errors import CliError, ExitCode, told_by

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. A user's mistake is one line on stderr, never a traceback."""
    if sys.stdout is None:  # closed by who started this
        return _failed(CliError("standard output is closed: give it a file or a pipe"))
    arguments = options.parser().parse_args(argv)
    command = importlib.import_module(f"kvquota_cli.commands.{arguments.command}")
    try:
        code = command.run(arguments)
        sys.stdout.flush()
    except CliError as error:
        return _failed(error)
    except BaseExceptionGroup as group:
        foreseen = told_by(group)
        if foreseen is None:
            raise
        return _failed(foreseen)
    except BrokenPipeError:
        _leave_output()
        return int(ExitCode.PROBLEM)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _leave_output()
        return _failed(CliError(f"standard output: {error.strerror}: make room", ExitCode.PROBLEM))
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)  # so that a shell sees what ended it
    return int(code)


def _leave_output() -> None:
    """So that the exit does not flush into it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(error: CliError) -> int:
    print(f"kvquota: {error}", file=sys.stderr)
    return int(error.code)


if __name__ == "__main__":
    raise SystemExit(main())
