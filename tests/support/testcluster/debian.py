"""Bring what the node needs from Debian: its container runtime, and the root file system of the Python image."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from testcluster import cache
from testcluster.errors import PartError
from testcluster.programs import ProgramError, run

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "runc": ("runc",),
    "containerd": ("containerd", "containerd-shim-runc-v2", "ctr"),
    "containernetworking-plugins": ("/usr/lib/cni/bridge", "/usr/lib/cni/host-local"),
    "iproute2": ("ip",),
    "mmdebstrap": ("mmdebstrap",),
    "openssl": ("openssl",),
}
"""Debian packages, each with the programs that show it is there, whoever installed them."""

BUILDING: Mapping[str, tuple[str, ...]] = {"buildah": ("buildah",), "mmdebstrap": PACKAGES["mmdebstrap"]}
"""Those that build an image from a Dockerfile, which the node does without."""

SUITE = "bookworm"
PYTHON_VERSION = (3, 11)
"""Python of `SUITE`: wheels for images are chosen for it."""

INSTALL_TIMEOUT_S = 900.0
"""Seconds for apt-get or mmdebstrap: 10 s each on a fast line, many times that on a slow one."""

_APT = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120")

_ROOTFS_PACKAGES = ("base-files", "coreutils", "dash", "python3")
_BUILDER_PACKAGES = (*_ROOTFS_PACKAGES, "python3-pip", "python3-dev", "gcc", "libc6-dev")
_UNUSED = ("/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*", "/usr/share/info/*")
_COMPILE = 'chroot "$1" python3 -m compileall -q --invalidation-mode unchecked-hash /usr/lib/python3.11'
"""The packages' own scripts, which compile the standard library, do not run; pods would compile it at each start."""


class PackagesError(PartError):
    """A Debian package is missing and cannot be installed here."""


def missing(packages: Mapping[str, tuple[str, ...]] = PACKAGES) -> list[str]:
    """Names of packages of which a program is not on this machine."""
    return [package for package, programs in packages.items() if not all(map(_there, programs))]


def _there(program: str) -> bool:
    return shutil.which(program) is not None


def install(packages: Mapping[str, tuple[str, ...]] = PACKAGES) -> None:
    """Install what is missing with apt-get, and say so; nothing happens, and no network is used, if all is there."""
    names = missing(packages)
    if not names:
        return
    if not _there("apt-get"):
        raise PackagesError(f"missing: {', '.join(names)}, and there is no apt-get; install the programs they contain")
    _say(f"installing Debian packages for tests: {', '.join(names)} ...")
    started = time.monotonic()
    try:
        _apt_install(names)
    except ProgramError as error:
        raise PackagesError(f"apt-get could not install {', '.join(names)}; install them yourself\n{error}") from error
    _say(f"installed in {time.monotonic() - started:.0f} s")


def _apt_install(names: Sequence[str]) -> None:
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = [*_APT, "install", "--yes", "--no-install-recommends", *names]
    try:
        run(command, environ=environ, timeout_s=INSTALL_TIMEOUT_S)
    except ProgramError:
        run([*_APT, "update"], environ=environ, timeout_s=INSTALL_TIMEOUT_S)
        run(command, environ=environ, timeout_s=INSTALL_TIMEOUT_S)


def python_rootfs() -> Path:
    """Tar of a root file system with Python and a shell, 70 MB, made once and kept in the user's cache."""
    key = cache.digest(SUITE, _COMPILE, *_ROOTFS_PACKAGES, *_UNUSED)
    target = cache.root() / "rootfs" / f"python-{SUITE}-{key}.tar"
    return cache.once(target, lambda temporary: _bootstrap(temporary, _ROOTFS_PACKAGES, _UNUSED))


def builder_rootfs() -> Path:
    """Tar of one that has pip and a C compiler too, 290 MB, as images that others build upon."""
    unused = (*_UNUSED, "/usr/lib/python3.11/EXTERNALLY-MANAGED")  # with which Debian's pip installs nothing
    key = cache.digest(SUITE, _COMPILE, *_BUILDER_PACKAGES, *unused)
    target = cache.root() / "rootfs" / f"builder-{SUITE}-{key}.tar"
    return cache.once(target, lambda temporary: _bootstrap(temporary, _BUILDER_PACKAGES, unused))


def _bootstrap(target: Path, packages: Sequence[str], unused: Sequence[str]) -> None:
    _say(f"making a Debian {SUITE} root file system with Python, 10 to 60 s the first time ...")
    started = time.monotonic()
    command = ["mmdebstrap", "--mode=root", "--variant=extract", "--format=tar", f"--include={','.join(packages)}"]
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in unused]
    command += [f"--extract-hook={_COMPILE}", SUITE, str(target)]
    try:
        run(command, environ={**os.environ, "SOURCE_DATE_EPOCH": "0"}, timeout_s=INSTALL_TIMEOUT_S)
    except (ProgramError, subprocess.SubprocessError) as error:
        raise PackagesError(f"mmdebstrap failed; it needs the Debian archive the first time\n{error}") from error
    _say(f"made it in {time.monotonic() - started:.0f} s: {target.stat().st_size // 1_000_000} MB")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
