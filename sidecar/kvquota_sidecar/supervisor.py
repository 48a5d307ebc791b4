"""The first process of the container: holds the listening sockets, and keeps a child alive that serves on them.

    python -I -S supervisor.py SPEC ARGUMENT...      # started by `kvquota_sidecar.__main__`, which binds the sockets

A child that is gone is followed by another at once. Until that one serves, connections wait in the kernel's queue: none
is refused. What the child gets is written in `kvquota_sidecar.inheritance`.

Invariants:

1. There is one child at most, and none after a signal to end was followed by the end of the child.
2. A child that served for less than STEADY_SECONDS makes the next but one wait, longer from time to time.
3. A child is killed when it has not shown for `hangSeconds` that its loop turns; only time in which this process ran
   counts, so that a machine or a container that was stopped for a while loses nothing.
4. SIGTERM and SIGINT are passed on. From then on nobody queues for a child that would not come: the sockets are closed
   here, and the child's own copies are all there is.
5. Nobody waits for whoever reads the log: see `Outlet`.
6. What a child has last put into `kept` (see `kvquota_sidecar.inheritance`) the next one finds there, unless
   MAX_EARLY in a row have ended early: it may be what they die of.
7. Whoever's parent is gone ends up here where this is process 1, and is reaped.

It imports only what the interpreter has at hand, and no package: it costs 10 MB and cannot break by what it serves.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from queue import SimpleQueue

SUPERVISED = "KVQUOTA_SUPERVISED"  # the environment variable that says what the child inherits
LOOK_SECONDS = 0.5  # how often the child's signs of life are read
STEADY_SECONDS = 1.0  # from the first sign of life: an end after that does not say that the next child ends at once too
MAX_EARLY = 3  # children that ended early, after which the next one gets nothing of theirs
WAITS_SECONDS = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0)  # before a child, by how many in a row ended early before it
START_SECONDS = 60.0  # to the first sign of life: a tenth of a core needs a few for the imports
STANDARD_OUTPUT = 1
HELD_BYTES = 256 * 1024  # of lines that nobody has read yet: about a thousand
AGAIN_SECONDS = 1.0  # until a line is tried again that the other end did not take: a disk may have room by then
FLUSH_SECONDS = 1.0  # for the last lines, when everything else is over
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class Outlet:
    """A descriptor that lines are written to by a thread, since its reader may stall, or be gone.

    What it takes comes out in order and whole. It takes no more than it can hold. The child writes its log by it too.
    The descriptor is shared with other processes, so it stays blocking: a thread can wait, a loop cannot.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        self._taken = self._written = 0  # bytes; each is changed by one thread only
        self._ending = threading.Event()
        self._writer = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._writer.start()

    def write(self, text: str, /) -> int:
        """Take all of it, or nothing: how many characters were taken. Never waits, never raises."""
        line = text.encode()
        if self._taken - self._written + len(line) > HELD_BYTES:
            return 0
        self._taken += len(line)
        self._lines.put(line)
        return len(text)

    def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Give what was taken `seconds` to be read; then it is lost. Nothing may be written any more."""
        self._ending.set()
        self._lines.put(b"")
        self._writer.join(seconds)

    def _write_all(self) -> None:
        while line := self._lines.get():
            if not self._is_out(line):
                return
            self._written += len(line)

    def _is_out(self, rest: bytes) -> bool:
        """Write it to its end, however long that takes; whether it was possible before the end."""
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # somebody who shares the descriptor does not want to wait
                select.select([], [self._descriptor], [], AGAIN_SECONDS)
            except OSError:
                if self._ending.wait(AGAIN_SECONDS):
                    return False
        return True


class Supervisor:
    """`arguments`: the child's command line. `sockets`: descriptors of the listening sockets, by port."""

    def __init__(self, arguments: list[str], sockets: dict[str, list[int]], hang_seconds: float) -> None:
        self._arguments = arguments
        self._sockets = sockets
        self._hang_seconds = hang_seconds
        self._beats, self._beat = os.pipe()
        self._life, self._lifeline = os.pipe()  # its end tells the child that this process is gone
        self._kept = os.memfd_create("kvquota")
        os.set_blocking(self._beats, False)
        os.set_blocking(self._beat, False)
        for descriptor in (self._beat, self._life, self._kept, *self._descriptors()):
            os.set_inheritable(descriptor, True)  # noqa: FBT003 - it takes no name
        self._restarts = {"killed": 0, "exited": 0, "hung": 0}
        self._child: int | None = None
        self._started_at = self._looked_at = time.monotonic()
        self._served_at: float | None = None  # the first sign of life
        self._silence = 0.0
        self._hung = self._leaving = False
        self._early = 0  # children in a row that ended early
        self._due: float | None = self._started_at
        self._code: int | None = None
        self._outlet = Outlet(STANDARD_OUTPUT)
        self._left_out = 0  # lines

    def run(self) -> int:
        """Serve until a signal to end; the exit code: 0, or what the child ended with after the signal."""
        woken = self._woken_by_signals()
        while self._code is None:
            self._start_if_due()
            select.select([woken], [], [], self._until_next())
            for number in _read(woken):
                if number != signal.SIGCHLD:
                    self._leave(number)
            self._listen()
            self._reap()
        self._outlet.close()
        return self._code

    def _woken_by_signals(self) -> int:
        """A descriptor that has the number of each signal that came, as a byte."""
        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda _number, _frame: None)
        return woken

    def _until_next(self) -> float:
        return LOOK_SECONDS if self._due is None else min(LOOK_SECONDS, max(0.0, self._due - time.monotonic()))

    def _start_if_due(self) -> None:
        if self._due is None or time.monotonic() < self._due:
            return
        self._due = None
        _read(self._beats)
        self._started_at, self._served_at, self._silence = time.monotonic(), None, 0.0
        self._hung = False
        try:
            self._child = self._spawn()
        except OSError as error:  # no memory, no process to be had: later perhaps
            self._restarts["exited"] += 1
            self._again("child_not_started", error=str(error))

    def _spawn(self) -> int:
        if self._early >= MAX_EARLY:
            os.ftruncate(self._kept, 0)
        given = {"beat": self._beat, "life": self._life, "kept": self._kept, "restarts": self._restarts}
        environ = {**os.environ, SUPERVISED: json.dumps(given | self._sockets)}
        argv = [sys.executable, "-m", "kvquota_sidecar", *self._arguments]
        return os.posix_spawn(sys.executable, argv, environ, setpgroup=0)

    def _descriptors(self) -> list[int]:
        return [descriptor for port in self._sockets.values() for descriptor in port]

    def _leave(self, number: int) -> None:
        if not self._leaving:
            self._leaving = True
            for descriptor in self._descriptors():
                os.close(descriptor)
        if self._child is None:
            self._code, self._due = 0, None
        else:
            os.kill(self._child, number)

    def _listen(self) -> None:
        """Kill a child that has been silent for too long."""
        now = time.monotonic()
        passed, self._looked_at = min(now - self._looked_at, 2 * LOOK_SECONDS), now
        if self._child is None:
            return
        if _read(self._beats):
            self._served_at, self._silence = self._served_at or now, 0.0
            return
        self._silence += passed
        if not self._hung and self._silence > (START_SECONDS if self._served_at is None else self._hang_seconds):
            self._hung = True
            os.kill(self._child, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child:
                self._ended(os.waitstatus_to_exitcode(status))

    def _ended(self, code: int) -> None:
        """`code`: as the child exited, or the number of the signal below 0."""
        self._child = None
        if self._leaving:
            self._code = 0 if self._served_at is None else code if code >= 0 else 128 - code
            return
        cause = "hung" if self._hung else "killed" if code < 0 else "exited"
        self._restarts[cause] += 1
        self._again("child_ended", cause=cause, code=code)

    def _again(self, event: str, **told: str | int) -> None:
        now = time.monotonic()
        steady = self._served_at is not None and now - self._served_at >= STEADY_SECONDS
        self._early = 0 if steady else self._early + 1
        wait = WAITS_SECONDS[min(max(0, self._early - 1), len(WAITS_SECONDS) - 1)]
        self._due = now + wait
        self._log(event, **told, lived=round(now - self._started_at, 3), nextIn=wait)

    def _log(self, event: str, **told: str | float) -> None:
        """As the child does it."""
        line = {"at": round(time.time(), 3), "event": event, **told}
        if self._left_out:
            line["linesLeftOut"] = self._left_out
        taken = self._outlet.write(json.dumps(line) + "\n")
        self._left_out = 0 if taken else self._left_out + 1


def _read(descriptor: int) -> bytes:
    """All that is there to be read now."""
    read = b""
    try:
        while more := os.read(descriptor, 4096):
            read += more
    except BlockingIOError:
        pass
    return read


def main(spec: str, arguments: list[str]) -> int:
    """Run it. `spec`: JSON with `sockets` (descriptors by port) and `hangSeconds`."""
    given = json.loads(spec)
    return Supervisor(arguments, given["sockets"], given["hangSeconds"]).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
