"""Run a command, and kill the whole process group when whoever started it is gone.

Standard input is a pipe that the starter holds open; it closes when the starter ends, in whatever way. The starter
makes this process the leader of a group. Run as a script: `guard.py COMMAND ARGUMENT…`.
"""

import os
import signal
import subprocess
import sys
import threading


def main(command: list[str]) -> int:
    # A signal to the group is for the command; this process stays to see it end. Unlike an ignored signal, one with a
    # handler is back to its default in the command.
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_die_with_starter, daemon=True).start()
    return process.wait()


def _die_with_starter() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
