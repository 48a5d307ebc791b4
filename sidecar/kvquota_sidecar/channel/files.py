"""Config, identity and token on the disk: read at the start, and again when their content changes.

A file that is not there, or not any more, changes nothing. What it holds is judged by who is told of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_FILE_BYTES: Final = 16 * 1024 * 1024  # a config of 10,000 tenants has 2.4 MB


@dataclass(frozen=True, slots=True)
class WatchedFile:
    """`told` gets the content, first and after every change."""

    path: Path
    told: Callable[[bytes], None]


class FileWatch:
    """Looks at files every `period_seconds`; by content, since a mounted volume's times and links say little."""

    def __init__(self, files: tuple[WatchedFile, ...], period_seconds: float) -> None:
        self._files = files
        self._period_seconds = period_seconds
        self._seen: dict[Path, bytes] = {}

    def look(self) -> None:
        """Look once, now."""
        for file in self._files:
            self._tell(file, _read(file.path))

    async def run(self) -> None:
        """Look until cancelled; the reading happens in a thread."""
        while True:
            await asyncio.sleep(self._period_seconds)
            contents = await asyncio.to_thread(lambda: [_read(file.path) for file in self._files])
            for file, content in zip(self._files, contents, strict=True):
                self._tell(file, content)

    def _tell(self, file: WatchedFile, content: bytes | None) -> None:
        if content is not None and content != self._seen.get(file.path):
            self._seen[file.path] = content
            file.told(content)


def waiting_for(what: str, file: Path | None) -> str:
    """What is said at a start without a document: where it was looked for. `what`: its name."""
    if file is None:
        return f"waiting for the {what}: no file was named and no operator has called yet"
    reason = "cannot be used" if file.exists() else "does not exist yet"
    return f"waiting for the {what}: {file} {reason} and no operator has called yet"


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_FILE_BYTES)
    except OSError:
        return None
