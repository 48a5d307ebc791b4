"""How a command of `kvquota` fails.

Every failure that a user can cause is one sentence that says what to do, and one of four exit codes.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the shell sees. argparse itself ends with USAGE on a bad command line."""

    OK = 0
    PROBLEM = 1
    USAGE = 2
    NO_PLAN = 3


class CliError(Exception):
    """A failure to be shown as one sentence, without a traceback."""

    def __init__(self, sentence: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(sentence)
        self.code = code


def told_by(group: BaseExceptionGroup[BaseException]) -> CliError | None:
    """The failure to show of several that came at once; None where one of them is a bug."""
    foreseen, others = group.split(CliError)
    if foreseen is None or others is not None:
        return None
    first = foreseen.exceptions[0]
    return told_by(first) if isinstance(first, BaseExceptionGroup) else first
