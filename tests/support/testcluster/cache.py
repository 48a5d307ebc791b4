"""Keep what is slow to make in the user's cache, made once whoever asks first.

A thing in the cache is complete or absent: it is made under a temporary name and renamed. Two makers at once are held
apart by a file lock, so the second finds the thing of the first.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from testcluster.errors import PartError

LOCK_TIMEOUT_S = 1800.0
"""Seconds to wait for another maker: the slowest thing takes 200 s on two idle cores, several may be queued."""

LOCK_POLL_S = 0.2


class CacheLockTimeoutError(PartError):
    """Another process holds the lock of a cached thing for longer than any build takes."""


def root(environ: Mapping[str, str] = os.environ) -> Path:
    """Directory of everything that is cached, as an absolute path; it need not exist yet."""
    if own := environ.get("KVQUOTA_CACHE"):
        return Path(own).expanduser().absolute()
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "kvquota"


def digest(*parts: bytes | str) -> str:
    """16 hex digits that name these parts in this order; a different split gives different digits."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()[:16]


def file_digest(path: Path) -> str:
    """SHA-256 of a file as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def once(target: Path, make: Callable[[Path], None], *, timeout_s: float = LOCK_TIMEOUT_S) -> Path:
    """Return `target`, a file or a directory, after `make(temporary path)` where nobody has made it yet."""
    if target.exists():
        return target
    with _locked(target.with_name(f".{target.name}.lock"), timeout_s):
        if not target.exists():
            _make(target, make)
    return target


def _make(target: Path, make: Callable[[Path], None]) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    _remove(temporary)
    try:
        make(temporary)
        temporary.rename(target)
    finally:
        _remove(temporary)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path, timeout_s: float) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_s
    with path.open("w") as file:
        while not _try_lock(file.fileno()):
            if time.monotonic() > deadline:
                raise CacheLockTimeoutError(
                    f"{path} has been locked for {timeout_s:.0f} s by another process that is building; "
                    f"end that process (`fuser {path}` names it) and run again"
                )
            time.sleep(LOCK_POLL_S)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
