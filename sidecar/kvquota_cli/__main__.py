"""The command line `kvquota`, also reached as `kubectl kvquota`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from kvquota_cli import options
from kvquota_cli.errors import CliError, ExitCode, told_by


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. A user's mistake is one line on stderr, never a traceback."""
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the exit does not flush into it again
        return int(ExitCode.PROBLEM)
    return int(code)


def _failed(error: CliError) -> int:
    print(f"kvquota: {error}", file=sys.stderr)
    return int(error.code)


if __name__ == "__main__":
    raise SystemExit(main())
