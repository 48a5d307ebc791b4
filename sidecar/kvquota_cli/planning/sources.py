"""What `--model` names: a Hugging Face config.json or the folder that has it, a file with a ModelPool, or a preset."""

from __future__ import annotations

import difflib
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvquota_api.memory.presets import load_preset, preset_names
from kvquota_api.quoting import quoted
from kvquota_cli.errors import CliError

if TYPE_CHECKING:
    from kvquota_api.model_pool import ModelPool

MAX_FILE_BYTES: Final = 4 * 2**20  # a config.json is a few KiB; bounds what a wrong name can cost
MAX_SHOWN: Final = 200  # characters of a wrong name


@dataclass(frozen=True, slots=True)
class ModelSource:
    """`name` for people; `config`: the config.json; `preset`: where it is one; `pool`: where a ModelPool names it."""

    name: str
    config: Mapping[str, Any]
    preset: str | None = None
    pool: ModelPool | None = None


def read_source(named: str, pool: str | None) -> ModelSource:
    """The model. `pool`: which ModelPool of the file. Raises CliError, and PlanError for a pool without its config."""
    path = Path(named)
    file = path / "config.json" if _is(path.is_dir) else path
    if _is(file.exists) and not file.is_dir():
        return _from_file(file, pool)
    shown = named if named.isascii() and named.isprintable() else quoted(named)
    if pool is not None:
        raise CliError(f"--pool chooses among the ModelPools of a file, and {shown} is no file: leave it out")
    if named in preset_names():
        return ModelSource(named, load_preset(named), preset=named)
    raise CliError(f"--model {shown[:MAX_SHOWN]}: {_not_found(path, named)}")


def _is(asked: Callable[[], bool]) -> bool:
    """What a path is; nothing where its name is longer than any file's."""
    try:
        return asked()
    except OSError:
        return False


def read_text(path: Path, option: str, most: int) -> str:
    """The text of a file, of `most` bytes at most, that an option names. Raises CliError."""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise CliError(f"{option} {path}: more than {most // 2**20} MiB: name the right file")
        return content.decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise CliError(f"{option} {path}: cannot be read: {error.strerror}; name a file that is there") from error


def _not_found(path: Path, named: str) -> str:
    if _is(path.is_dir):
        return "the folder has no config.json: name the file itself"
    names = preset_names()
    near = difflib.get_close_matches(named, names, n=3)
    meant = f"did you mean {' or '.join(near)}?" if near else f"presets are {', '.join(names)}"
    return f"no file and no preset has this name; {meant}"


def _from_file(file: Path, pool: str | None) -> ModelSource:
    text = read_text(file, "--model", MAX_FILE_BYTES)
    try:
        config = json.loads(text)
    except json.JSONDecodeError:
        return _from_manifests(text, file, pool)
    except (ValueError, RecursionError) as error:
        raise CliError(
            f"--model {file}: a number of thousands of digits or an object of thousands of levels: give a config.json"
        ) from error
    if not isinstance(config, dict):
        raise CliError(f"--model {file}: a config.json holds an object, not {type(config).__name__}")
    if "kind" in config and "apiVersion" in config:
        return _from_manifests(text, file, pool)
    if pool is not None:
        raise CliError(f"--pool chooses among the ModelPools of a file, and {file} is a config.json: leave it out")
    return ModelSource(_model_name(file, config), config)


def _model_name(file: Path, config: Mapping[str, Any]) -> str:
    named = config.get("_name_or_path")
    if isinstance(named, str) and named:
        return named if named.isprintable() else quoted(named)
    return file.parent.resolve().name if file.name == "config.json" else file.stem


def _from_manifests(text: str, file: Path, pool: str | None) -> ModelSource:
    """Loaded only for a ModelPool: what reads it takes longer to import than a plan takes."""
    pool_files = importlib.import_module("kvquota_cli.planning.pool_files")
    config, found = pool_files.read_pool(text, file, pool)
    return ModelSource(found.metadata.name, config, preset=found.spec.model.config.preset, pool=found)
