"""The sidecar compiled by mypyc: a third of the time of its Python. `make native`, or a wheel by KVQUOTA_NATIVE=1.

    KVQUOTA_NATIVE=1 pip wheel --no-build-isolation --no-deps --wheel-dir dist .

Nothing is written beside the sources, which stay interpreted for development and coverage. What is compiled behaves as
what is interpreted does, but for this: its functions and classes cannot be replaced at run time, and a wrong type of an
argument is a TypeError at once. `make test-native` holds it to that.
"""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT: Final = Path(__file__).resolve().parent
SOURCES: Final = ROOT / "sidecar"
PACKAGE: Final = "kvquota_sidecar"
BUILD: Final = ROOT / "build" / "native"
WANTED: Final = "KVQUOTA_NATIVE"  # the variable that asks for a compiled wheel
MADE_OF: Final = ".made-of"  # in the folder of what was compiled: the digest of what went into it

COMPILED: Final = ("admission", "estimate", "ledger", "proxy", "refusals", "telemetry")
"""Packages that every request passes. The others run once, or once a second."""

RECORDS: Final = ("Value", "LeafValue", "MutableLeaf")
"""Bases of records. Where they are msgspec's structs, each look at a field goes through a dictionary of its class."""

LEAVES: Final = frozenset({"LeafValue", "MutableLeaf"})

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
    """Fill `folder`: the whole package with its compiled modules, to be put before the sources on `sys.path`.

    It is made anew, unless it was made of the same sources by the same compiler: so `make native` and a wheel that is
    built after it share the two minutes.
    """
    try:
        from mypyc.build import mypycify  # noqa: PLC0415 - an interpreted wheel is built without them
        from setuptools import Distribution  # noqa: PLC0415
    except ImportError as error:
        sys.exit(f"{error}: install requirements/native.lock, and build without isolation")
    stamp, digest = folder / MADE_OF, digest_of_sources()
    if stamp.exists() and stamp.read_text() == digest:
        return
    shutil.rmtree(folder, ignore_errors=True)
    work = folder.with_name(f"{folder.name}-work")  # kept: the types are not worked out again
    write_sources(work)
    os.chdir(work)  # the paths of what is compiled, and so those in tracebacks, are as in the repository
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", "types"]
    paths = [str(path.relative_to(work)) for path in compiled(work / "sidecar" / PACKAGE)]
    extensions = mypycify([*options, *sorted(paths)], group_name=PACKAGE, target_dir="c", debug_level="0")
    for extension in extensions:
        extension.extra_compile_args.append("-fvisibility=hidden")  # so they call each other straight: 1 % of a request
    builder = Distribution({"name": PACKAGE, "ext_modules": extensions}).get_command_obj("build_ext")
    builder.build_lib, builder.build_temp, builder.inplace = str(folder), "objects", False
    builder.ensure_finalized()
    builder.run()
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCES / PACKAGE, folder / PACKAGE, ignore=without, dirs_exist_ok=True)
    stamp.write_text(digest)


def digest_of_sources() -> str:
    """Of all that what is compiled depends on, in hex; of Python that is how it links what is compiled."""
    found = hashlib.sha256(f"{sysconfig.get_config_var('SOABI')} {metadata.version('mypy')}".encode())
    packages = (SOURCES / PACKAGE, ROOT / "crds" / "kvquota_api")
    modules = (path for package in packages for path in sorted(package.rglob("*.py")))
    for path in (ROOT / "pyproject.toml", ROOT / "hatch_build.py", *modules):
        found.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def write_sources(work: Path) -> None:
    """What is compiled, with its records as the compiler's own classes, and beside it what it is typed by."""
    package = work / "sidecar" / PACKAGE
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(SOURCES / PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "records_compiled.py").replace(package / "records.py")
    for path in compiled(package):
        try:
            path.write_text(with_native_records(path.read_text()))
        except RecordError as error:
            sys.exit(f"{path.relative_to(work)}: {error}")
    (work / "crds").unlink(missing_ok=True)  # where the repository was moved it leads nowhere
    (work / "crds").symlink_to(ROOT / "crds")


def compiled(package: Path) -> Iterator[Path]:
    """The source files of the compiled modules."""
    yield package / "records.py"
    for path in (path for name in COMPILED for path in (package / name).rglob("*.py")):
        if path.name != "__init__.py" and path.relative_to(package).as_posix() not in INTERPRETED:
            yield path


class RecordError(Exception):
    """A record is not written as it has to be; the text says in which line, and how."""


def with_native_records(source: str) -> str:
    """The same module, in which each record has an `__init__` of its fields. Every line stays where it is.

    Raises RecordError.
    """
    lines, classes = source.splitlines(), [each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)]
    for record in (each for each in classes if base_of(each) in RECORDS):
        head, fields = record.lineno - 1, [each for each in record.body if isinstance(each, ast.AnnAssign)]
        lines[head] = lines[head].replace(", frozen=True", "")
        for field in fields:
            if field.end_lineno != field.lineno:
                raise RecordError(f"line {field.lineno}: write a field of a record in one line")
            lines[field.lineno - 1] = f"    {ast.unparse(field.target)}: {ast.unparse(field.annotation)}"
        if fields:
            fill(lines, (fields[-1].end_lineno or 0) + 1, init_of(fields))
    leaves = [each for each in classes if not LEAVES.isdisjoint({each.name, base_of(each)})]
    for leaf in leaves:
        fill(lines, leaf.lineno - 1, "@mypyc_attr(acyclic=True)")
    if leaves:  # the compiler reads the name, and nothing runs it
        place = lines.index("from __future__ import annotations")
        lines[place] += "; import typing"
        fill(lines, place + 2, "if typing.TYPE_CHECKING: from mypy_extensions import mypyc_attr")
    return "\n".join(lines) + "\n"


def base_of(cls: ast.ClassDef) -> str:
    return ast.unparse(cls.bases[0]) if cls.bases else ""


def init_of(fields: Sequence[ast.AnnAssign]) -> str:
    """An `__init__` in one line."""
    asked, steps = [], []
    for field in fields:
        name, kind = ast.unparse(field.target), ast.unparse(field.annotation)
        if isinstance(field.value, ast.Dict):  # each has one of its own
            asked.append(f"{name}: {kind} | None = None")
            steps.append(f"self.{name} = {ast.unparse(field.value)} if {name} is None else {name}")
        else:
            asked.append(f"{name}: {kind}" if field.value is None else f"{name}: {kind} = {ast.unparse(field.value)}")
            steps.append(f"self.{name} = {name}")
    return f"    def __init__(self, {', '.join(asked)}) -> None: {'; '.join(steps)}"


def fill(lines: list[str], number: int, text: str) -> None:
    """Put `text` into the empty line of that number, counted from 1. Raises RecordError."""
    if number > len(lines):
        lines.append("")
    if lines[number - 1]:
        raise RecordError(f"line {number}: leave a line empty above a record and behind its fields")
    lines[number - 1] = text


if __name__ == "__main__":
    compile_into(BUILD)
    sys.stdout.write(f"{BUILD}\n")
