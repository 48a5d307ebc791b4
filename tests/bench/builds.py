"""Which sidecar a bench measures: the compiled one in build/native, or the sources as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final, Literal, get_args

Build = Literal["compiled", "interpreted"]
BUILDS: Final[tuple[Build, ...]] = get_args(Build)

ROOT: Final = Path(__file__).resolve().parents[2]
NATIVE: Final = ROOT / "build" / "native"
_MARK: Final = NATIVE / ".built"  # what `make native` leaves


def path(build: Build) -> str:
    """What stands first in PYTHONPATH. Ends the bench where the compiled sidecar is not that of the sources."""
    if build == "interpreted":
        return str(ROOT / "sidecar")
    made_at = _MARK.stat().st_mtime if _MARK.exists() else 0.0
    if any(each.stat().st_mtime > made_at for each in (ROOT / "sidecar" / "kvquota_sidecar").rglob("*.py")):
        sys.exit("bench: the compiled sidecar is missing, or older than the sources: make native, or --interpreted")
    return str(NATIVE)


def environment(build: Build) -> dict[str, str]:
    """Of a process that is to run it."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([path(build), os.environ.get("PYTHONPATH", "")])}


def told(python: str, environ: dict[str, str]) -> str:
    """What the sidecar of that environment says of itself: its version and its build."""
    argv = [python, "-m", "kvquota_sidecar", "--version"]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=True).stdout.strip()
