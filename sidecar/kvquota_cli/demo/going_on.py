"""What to do after the demonstration, as commands that run as they are printed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from kvquota_cli.wrapping import continued, wrapped

_MAIN: Final = "__main__.py"  # what a program is called that was started by `python -m`
_INDENT: Final = "  "
_FAKE_ENGINE: Final = (
    "-m kvquota_fakeengine --port 8000 --model llama-3.1-8b-instruct"
    " --num-gpu-blocks-override 18432 --block-size 16 --max-model-len 32768"
)  # as large as the pool of the examples


@dataclass(frozen=True, slots=True)
class Started:
    """How this program was started: `program` is argv[0], `python` the interpreter, `folder` the working directory.
    `examples`: whether the example manifests are there."""

    program: str
    python: str
    folder: str
    examples: bool


def going_on(started: Started, columns: int) -> list[str]:
    """The lines of it."""
    return list(_lines(started, columns))


def _lines(started: Started, columns: int) -> Iterator[str]:
    python = _near(started.python, started.folder)
    kvquota = f"{python} -m kvquota_cli" if PurePath(started.program).name == _MAIN else _own(started)
    manifests = "examples/" if started.examples else "DIR"
    for what, command in (
        ("An engine without a model, in one terminal:", f"{python} {_FAKE_ENGINE}"),
        (
            "The same quotas before it, or before your own engine, in another:",
            f"{kvquota} serve --manifests {manifests} --engine http://127.0.0.1:8000",
        ),
        ("This demonstration through an API server:", f"{kvquota} demo --kubeconfig ~/.kube/config"),
        ("Manifests, checked offline:", f"{kvquota} check {manifests}"),
    ):
        yield from wrapped(what, columns)
        yield from (f"{_INDENT}{line}" for line in continued(command, columns - len(_INDENT)))


def _own(started: Started) -> str:
    return _near(started.program, started.folder)


def _near(path: str, folder: str) -> str:
    """The path as it is shortest to type from `folder`."""
    pure = PurePath(path)
    if not pure.is_relative_to(folder):
        return path
    inside = str(pure.relative_to(folder))
    return inside if "/" in inside else f"./{inside}"
