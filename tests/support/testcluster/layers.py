"""Make the layers of images for the node: plain tars, the same bytes from the same content.

What needs the network, the packages of a lock file, is kept in the user's cache by the content of that file; the rest
is made again in less than a second.
"""

import io
import platform
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from testcluster import cache
from testcluster.debian import PYTHON_VERSION
from testcluster.errors import PartError
from testcluster.programs import ProgramError, run

SITE = "/app"
"""Where Python packages lie in an image; `PYTHONPATH` names it."""

USER_ID = 65532
"""The `nonroot` user of the images, the number that distroless images use too."""

PIP_TIMEOUT_S = 900.0
"""Seconds for pip: 20 s on a fast line for the largest lock file."""

_GLIBC_MINOR = 36
"""Of glibc 2.36 in Debian bookworm: wheels built for it or an older one run there."""

_FORMAT = "1"
"""Part of the cache's key: a change in how layers are made is a new layer."""


class LayerError(PartError):
    """A layer cannot be made here; the message has what pip said."""


def directory_layer(target: Path, directory: Path, at: str) -> Path:
    """Write a tar with all below `directory` at the absolute path `at`, owned by root and readable by all."""
    with tarfile.open(target, "w") as tar:
        for name in _parents(at):
            tar.addfile(_entry(name, tarfile.DIRTYPE, 0o755))
        for path in sorted(directory.rglob("*")):
            _add(tar, path, f"{at.strip('/')}/{path.relative_to(directory)}")
    return target


def program_layer(target: Path, program: Path, at: str) -> Path:
    """Write a tar with one executable file at the absolute path `at`."""
    with tarfile.open(target, "w") as tar:
        _add(tar, program, at.strip("/"))
    return target


def account_layer(target: Path) -> Path:
    """Write a tar with what a Debian root file system lacks as long as no package script ran: users and /tmp."""
    nonroot = f"nonroot:x:{USER_ID}:{USER_ID}"
    with tarfile.open(target, "w") as tar:
        _add_text(tar, "etc/passwd", f"root:x:0:0:root:/root:/bin/sh\n{nonroot}:nonroot:/tmp:/bin/sh\n")
        _add_text(tar, "etc/group", f"root:x:0:\nnonroot:x:{USER_ID}:\n")
        tar.addfile(_entry("tmp", tarfile.DIRTYPE, 0o1777))
    return target


def dependency_layer(lock: Path) -> Path:
    """Tar with the packages of a lock file with hashes, for the Python of the base image; cached by its content."""
    key = cache.digest(_FORMAT, platform.machine(), str(sys.version_info[:2]), lock.read_bytes())
    target = cache.root() / "layers" / f"{lock.stem}-{key}.tar"
    return cache.once(target, lambda temporary: _make_dependencies(temporary, lock))


def _make_dependencies(target: Path, lock: Path) -> None:
    print(f"installing {lock.name} for images, about 20 s the first time ...", file=sys.stderr, flush=True)
    started = time.monotonic()
    _install_layer(target, ["--require-hashes", "--requirement", str(lock)])
    print(f"installed {lock.name} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def wheel_layer(target: Path, wheels: Sequence[Path]) -> Path:
    """Write a tar with the packages of wheel files, without what they depend on; needs no network."""
    _install_layer(target, ["--no-index", *map(str, wheels)])
    return target


def _install_layer(target: Path, what: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="kvquota-layer-") as name:
        site = Path(name) / "site"
        try:
            _pip("install", "--no-compile", "--target", str(site), *what)
        except ProgramError as error:
            raise LayerError(f"pip could not fill an image layer; lock files need a package index\n{error}") from error
        _drop_traces(site)
        _compile(site)
        directory_layer(target, site, SITE)


def download(folder: Path, lock: Path) -> None:
    """Put the wheels of a lock file with hashes into `folder`, for the Python of the base image."""
    _pip("download", "--dest", str(folder), "--require-hashes", "--requirement", str(lock))


def _pip(verb: str, *what: str) -> None:
    version = ".".join(map(str, PYTHON_VERSION))
    command = [sys.executable, "-m", "pip", verb, "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--implementation=cp", f"--python-version={version}"]
    command += [f"--platform={tag}" for tag in _platforms(platform.machine())]
    run([*command, *what], timeout_s=PIP_TIMEOUT_S)


def _platforms(machine: str) -> Iterator[str]:
    yield from (f"manylinux_2_{minor}_{machine}" for minor in range(_GLIBC_MINOR, 4, -1))
    yield from (f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}")
    yield f"linux_{machine}"  # what was compiled on this machine; an index has none of these


def _drop_traces(site: Path) -> None:
    """Remove what names this machine: console scripts of its Python, and where pip found a wheel."""
    shutil.rmtree(site / "bin", ignore_errors=True)
    for name in ("direct_url.json", "RECORD"):
        for path in site.glob(f"*.dist-info/{name}"):
            path.unlink()


def _compile(site: Path) -> None:
    """Compile ahead, as a read-only image cannot; by content, as tar times are all zero. Another Python's is no use."""
    if sys.version_info[:2] == PYTHON_VERSION:
        command = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash"]
        run([*command, "-s", site, "-p", SITE, site], timeout_s=PIP_TIMEOUT_S)


def _parents(at: str) -> Iterator[str]:
    parts = at.strip("/").split("/")
    yield from ("/".join(parts[: count + 1]) for count in range(len(parts)))


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    if path.is_dir():
        tar.addfile(_entry(name, tarfile.DIRTYPE, 0o755))
        return
    mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
    entry = _entry(name, tarfile.REGTYPE, mode, path.stat().st_size)
    with path.open("rb") as content:
        tar.addfile(entry, content)


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    tar.addfile(_entry(name, tarfile.REGTYPE, 0o644, len(data)), io.BytesIO(data))


def _entry(name: str, kind: bytes, mode: int, size: int = 0) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.size = kind, mode, size
    return entry
