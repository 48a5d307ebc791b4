"""The bearer token of the admin port, in a file that only its owner can read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kvquota_cli.errors import CliError

SHORTEST: Final = 32  # characters, as in the Secret of a pool
LONGEST: Final = 128


@contextmanager
def token_file(given: Path | None, fresh: str) -> Iterator[tuple[Path, str]]:
    """Path and token: of the given file if it is there, else `fresh` in that file, else in a temporary one.

    Only the temporary one is removed at the end. Raises CliError.
    """
    if given is not None:
        yield given, _kept(given, fresh)
        return
    with tempfile.TemporaryDirectory(prefix="kvquota-") as folder:
        path = Path(folder) / "token"
        _write(path, fresh)
        yield path, fresh


def _kept(path: Path, fresh: str) -> str:
    try:
        token = path.read_text().strip()
    except FileNotFoundError:
        _write(path, fresh)
        return fresh
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read the token in {path} ({error}): name another --token-file") from error
    if not SHORTEST <= len(token) <= LONGEST or not token.isascii() or not token.isprintable():
        raise CliError(f"{path} holds no token of {SHORTEST} to {LONGEST} characters: remove it, and a new one is made")
    return token


def _write(path: Path, token: str) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(token + "\n")
    except OSError as error:
        raise CliError(f"cannot write the token to {path} ({error.strerror}): name another --token-file") from error
