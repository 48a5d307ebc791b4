"""Run the sidecar: `python -m kvquota_sidecar --listen 0.0.0.0:8000 --engine http://127.0.0.1:18000`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import uvloop

from kvquota_sidecar.memory import memory_limit
from kvquota_sidecar.settings import Settings, SettingsError, read_settings
from kvquota_sidecar.sidecar import Sidecar

BAD_SETTINGS: Final = 2  # exit code


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """The exit code: 0 after SIGTERM, 2 for settings that do not fit."""
    try:
        settings = read_settings(arguments, environ, memory_bytes=memory_limit())
    except SettingsError as error:
        sys.stderr.write(f"kvquota_sidecar: {error}\n")
        return BAD_SETTINGS
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; a second one does not wait for running requests."""
    sidecar = Sidecar(settings)
    leaving = asyncio.Event()

    def leave() -> None:
        if leaving.is_set():
            sidecar.hurry()
        leaving.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)
    try:
        await sidecar.start()
    except OSError as error:
        sys.stderr.write(f"kvquota_sidecar: cannot listen: {error}. Is another program on this port?\n")
        return BAD_SETTINGS
    await sidecar.until(leaving)
    await sidecar.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
