"""Run the sidecar: `python -m kvquota_sidecar --listen 0.0.0.0:8000 --engine http://127.0.0.1:18000`.

This program runs twice. First it reads the settings and binds the ports, and becomes the supervisor (`supervisor.py`,
in the same process); then as the supervisor's child, which serves.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import uvloop

from kvquota_sidecar import descriptors, supervisor
from kvquota_sidecar.faults import described
from kvquota_sidecar.inheritance import Inheritance, inheritance
from kvquota_sidecar.listening import Listeners
from kvquota_sidecar.memory import memory_limit
from kvquota_sidecar.settings import Settings, SettingsError, read_settings
from kvquota_sidecar.sidecar import Sidecar
from kvquota_sidecar.telemetry.journal import Journal
from kvquota_sidecar.tls import CertificateError

BAD_SETTINGS: Final = 2  # exit code
BROKEN: Final = 1  # exit code


def run() -> int:
    """The program `kvquota-sidecar`."""
    return main(sys.argv[1:], os.environ)


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """The exit code: 0 after SIGTERM, 2 for settings that do not fit, 1 after a fault of its own."""
    try:
        settings = read_settings(arguments, environ, memory_bytes=memory_limit())
        inherited = inheritance(environ)
        if inherited is None:
            _supervise(settings, arguments)
        outlet = supervisor.Outlet(supervisor.STANDARD_OUTPUT)
        sidecar = Sidecar(settings, log=outlet, inherited=inherited)
    except (SettingsError, CertificateError) as error:
        sys.stderr.write(f"kvquota-sidecar: {error}\n")
        return BAD_SETTINGS
    except OSError as error:
        sys.stderr.write(f"kvquota-sidecar: {error.strerror or error}. Is another program on this port?\n")
        return BAD_SETTINGS
    logging.basicConfig(level=logging.WARNING, handlers=[_Warnings(sidecar.journal)])
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(sidecar, inherited))
    except Exception as error:  # noqa: BLE001 - told as one line of the log, like all else
        sidecar.journal.write("died", error=described(error))
        return BROKEN
    finally:
        outlet.close()


def _supervise(settings: Settings, arguments: Sequence[str]) -> NoReturn:
    """Become the supervisor. What its children would not start with is found before: raises as they would."""
    descriptors.require()
    if settings.tls is not None:
        settings.tls.load()
    given = {"sockets": Listeners.bound(settings).handed_on(), "hangSeconds": settings.hang_seconds}
    program = str(Path(supervisor.__file__))
    os.execv(sys.executable, [sys.executable, "-I", "-S", program, json.dumps(given), *arguments])  # noqa: S606 - no shell: this very program


async def _serve(sidecar: Sidecar, inherited: Inheritance) -> int:
    """Serve until SIGTERM or SIGINT; running requests are not waited for after a second one, or without supervisor."""
    leaving = asyncio.Event()
    loop = asyncio.get_running_loop()

    def leave() -> None:
        if leaving.is_set():
            sidecar.hurry()
        leaving.set()

    def leave_at_once() -> None:
        loop.remove_reader(inherited.life)
        sidecar.hurry()
        leaving.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)
    loop.add_reader(inherited.life, leave_at_once)
    loop.set_exception_handler(lambda _loop, context: _tell(sidecar.journal, context))
    await sidecar.start()
    await sidecar.until(leaving)
    await sidecar.stop()
    return 0


class _Warnings(logging.Handler):
    """What a library warns of is a line of the log too, without its words: they may quote what a client sent."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        if self._journal.may_write():
            self._journal.write("warning", where=f"{record.name} at {record.filename}:{record.lineno}")


def _tell(journal: Journal, context: dict[str, Any]) -> None:
    """What nobody has caught: the connection that it happened on is closed, all others go on."""
    if journal.may_write():
        journal.write("fault", where=context.get("message"), error=described(context.get("exception")))


if __name__ == "__main__":
    sys.exit(run())
