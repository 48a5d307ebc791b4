"""The sidecar compiled by mypyc: half the time of its Python. `make native`, or a wheel by KVQUOTA_NATIVE=1.

    KVQUOTA_NATIVE=1 pip wheel --no-build-isolation --no-deps --wheel-dir dist .

Nothing is written beside the sources, which stay interpreted for development and coverage. What is compiled behaves as
what is interpreted does, but for this: its functions and classes cannot be replaced at run time, and a wrong type of an
argument is a TypeError at once. `make test-native` holds it to that.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT: Final = Path(__file__).resolve().parent
SOURCES: Final = ROOT / "sidecar"
PACKAGE: Final = "kvquota_sidecar"
BUILD: Final = ROOT / "build" / "native"
WANTED: Final = "KVQUOTA_NATIVE"  # the variable that asks for a compiled wheel

COMPILED: Final = ("admission", "estimate", "ledger", "proxy", "refusals", "telemetry")
"""Packages that every request passes. The others run once, or once a second."""

INTERPRETED: Final = {
    "estimate/bodies.py": "msgspec reads the types of its classes, which mypyc does not keep",
    "estimate/questions.py": "msgspec reads the types of its classes, which mypyc does not keep",
    "proxy/frames.py": "msgspec reads the types of its classes, which mypyc does not keep",
    "proxy/own_usage.py": "the options of its class are not inherited from a base, and mypyc drops what a class names",
}
"""Modules of those packages that are not compiled, and why. Nor is any `__init__.py`: they hold names alone."""


class NativeHook(BuildHookInterface[Any]):
    """Puts the compiled modules into a wheel that was asked to have them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or os.environ.get(WANTED) != "1":
            return
        compile_into(BUILD)
        build_data["pure_python"], build_data["infer_tag"] = False, True
        build_data["force_include"] |= {str(each): str(each.relative_to(BUILD)) for each in BUILD.rglob("*.so")}


def compile_into(folder: Path) -> None:
    """Make `folder` anew: the whole package with its compiled modules, to be put before the sources on `sys.path`."""
    try:
        from mypyc.build import mypycify  # noqa: PLC0415 - an interpreted wheel is built without them
        from setuptools import Distribution  # noqa: PLC0415
    except ImportError as error:
        sys.exit(f"{error}: install requirements/native.lock, and build without isolation")
    shutil.rmtree(folder, ignore_errors=True)
    work = folder.with_name(f"{folder.name}-work")  # kept: the types are not worked out again
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(work / "types")]
    os.chdir(ROOT)  # the paths of what is compiled, and so those in tracebacks, are relative to it
    extensions = mypycify(
        [*options, *map(str, sorted(compiled()))], group_name=PACKAGE, target_dir=str(work / "c"), debug_level="0"
    )
    builder = Distribution({"name": PACKAGE, "ext_modules": extensions}).get_command_obj("build_ext")
    builder.build_lib, builder.build_temp, builder.inplace = str(folder), str(work / "objects"), False
    builder.ensure_finalized()
    builder.run()
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCES / PACKAGE, folder / PACKAGE, ignore=without, dirs_exist_ok=True)


def compiled() -> Iterator[Path]:
    """The source files of the compiled modules, relative to the repository."""
    package = SOURCES / PACKAGE
    for path in (path for name in COMPILED for path in (package / name).rglob("*.py")):
        if path.name != "__init__.py" and path.relative_to(package).as_posix() not in INTERPRETED:
            yield path.relative_to(ROOT)


if __name__ == "__main__":
    compile_into(BUILD)
    sys.stdout.write(f"{BUILD}\n")
