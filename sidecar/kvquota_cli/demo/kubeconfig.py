"""Whether a file is a kubeconfig, before anything is begun with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from kvquota_cli.errors import CliError

_LISTS: Final = ("clusters", "contexts", "users")


def require_kubeconfig(path: Path) -> None:
    """Raises CliError that names the file and what is wrong with it."""
    wrong = _wrong(path)
    if wrong is not None:
        raise CliError(f"--kubeconfig {path}: {wrong}; name the file that kubectl uses, such as ~/.kube/config")


def _wrong(path: Path) -> str | None:
    try:
        content: Any = yaml.safe_load(path.read_bytes())
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except (yaml.YAMLError, UnicodeDecodeError):
        return "is no kubeconfig, it is not YAML"
    if not isinstance(content, dict):
        return "is no kubeconfig, it holds no object"
    for name in _LISTS:
        entries = content.get(name)
        if not isinstance(entries, list) or not all(isinstance(each, dict) and "name" in each for each in entries):
            return f"is no kubeconfig, it has no list of {name}"
    return None
