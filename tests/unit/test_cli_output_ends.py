"""What `kvquota` does when its output cannot be written, and when it is interrupted: one sentence, no traceback."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

DEADLINE_S = 60.0
PLAN = [sys.executable, "-m", "kvquota_cli", "plan", "--model", "llama-3.1-8b", "--kv-memory", "5GiB"]


def said(command: str) -> tuple[int, str]:
    """Exit code and standard error of a shell command line; "$@" is `PLAN`."""
    done = subprocess.run(
        ["sh", "-c", command, "sh", *PLAN], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full: only Linux has it")
@pytest.mark.parametrize("output", ["table", "json", "yaml"])
def test_a_full_disk_is_said(output: str) -> None:
    more = ["--output", output] + (["--gpu-memory", "79GiB", "--max-model-len", "8192"] if output == "yaml" else [])
    assert said(f'exec "$@" {" ".join(more)} > /dev/full') == (
        1,
        "kvquota: standard output: No space left on device: make room\n",
    )


def test_a_closed_output_is_said() -> None:
    assert said('exec "$@" >&-') == (2, "kvquota: standard output is closed: give it a file or a pipe\n")


def test_an_interrupt_ends_it_as_a_shell_expects_and_says_nothing(tmp_path: Path) -> None:
    fifo = tmp_path / "log"
    subprocess.run(["mkfifo", fifo], check=True)
    command = ["env", "--default-signal=INT", *PLAN, "--from-log", str(fifo)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        fifo.open("w"),  # it opens once the program reads it
    ):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (-signal.SIGINT, "", "")
