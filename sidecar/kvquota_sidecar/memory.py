"""How much memory this process may use, by the limits that its control groups set.

Both hierarchies are looked at, since nodes have one or the other: `memory.max` (v2) and `memory.limit_in_bytes` (v1),
from the process's own group up to the root, which is all that a container may see.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

_GROUPS: Final = Path("/proc/self/cgroup")
_ROOT: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = 2**60  # bytes: v1 writes "no limit" as the largest multiple of a page below 2^63


def memory_limit(groups: Path = _GROUPS, root: Path = _ROOT) -> int | None:
    """Bytes; None where no limit is set or none can be read."""
    limits = [limit for file in _limit_files(_read(groups), root) if (limit := _limit(_read(file))) is not None]
    return min(limits, default=None)


def _limit_files(listing: str, root: Path) -> list[Path]:
    files: list[Path] = []
    for line in listing.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            files += [root / each / "memory.max" for each in _up_from(path)]
        elif "memory" in controllers.split(","):
            files += [root / "memory" / each / "memory.limit_in_bytes" for each in _up_from(path)]
    return files


def _up_from(path: str) -> list[str]:
    """A group and all above it, relative to the root."""
    group = PurePosixPath(path)
    return [str(each).lstrip("/") for each in (group, *group.parents)]


def _read(file: Path) -> str:
    with suppress(OSError):
        return file.read_text()
    return ""


def _limit(text: str) -> int | None:
    number = text.strip()
    return int(number) if number.isdecimal() and int(number) < _UNLIMITED else None
