"""Builds an image from a Dockerfile, without a registry and without a container daemon.

Debian's buildah does it, in a chroot. The images that a Dockerfile stands on are made here, from Debian's packages, and
called as it calls them; packages of Python come from a folder of wheels, so nothing in a build needs the network.
"""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from testcluster import cache, debian, layers
from testcluster.programs import run

BUILD_TIMEOUT_S = 1800.0
"""Seconds for one build: a minute on an idle machine, and the compiler's two where it has something to do."""

WHEELS = "/wheels"
"""Where the wheels lie while a step runs."""


class Builder:
    """Context manager: what it builds lies in `directory`, and is gone after it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        store, state = directory / "store", directory / "state"
        self._buildah = ("buildah", "--storage-driver", "vfs", "--root", store, "--runroot", state)

    def __enter__(self) -> Self:
        debian.install(debian.BUILDING)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self("rm", "--all")
        shutil.rmtree(self._directory, ignore_errors=True)

    def __call__(self, *args: str | Path) -> str:
        """Standard output of buildah. Raises `ProgramError`."""
        return run([*self._buildah, *args], timeout_s=BUILD_TIMEOUT_S)

    def make_bases(self, *names: str) -> None:
        """Images of these names that have Python, pip and a C compiler, and that know the folder of wheels."""
        container = self("from", "scratch").strip()
        self("add", "--quiet", container, debian.builder_rootfs(), "/")
        for each in ("PIP_NO_INDEX=1", f"PIP_FIND_LINKS={WHEELS}", "PIP_ROOT_USER_ACTION=ignore"):
            self("config", "--env", each, container)
        for name in names:
            self("commit", "--quiet", container, f"docker.io/library/{name}")
        self("rm", container)

    def build(
        self, dockerfile: Path, context: Path, tag: str, args: Mapping[str, str], mounts: Mapping[str, Path]
    ) -> None:
        """Raises `ProgramError` with the output of the step that failed."""
        options = [f"--build-arg={name}={value}" for name, value in args.items()]
        options += [f"--volume={path}:{at}" for at, path in mounts.items()]
        self(
            "bud",
            "--isolation",
            "chroot",
            "--pull=never",
            "--layers",
            *options,
            "--file",
            dockerfile,
            "--tag",
            tag,
            context,
        )

    def output(self, image: str, *args: str) -> str:
        """What a container of an image prints that was started with these arguments."""
        [config] = [json.loads(self("inspect", "--type", "image", image))["OCIv1"]["config"]]
        container = self("from", "--pull=never", image).strip()
        return self("run", "--isolation", "chroot", container, "--", *config["Entrypoint"], *args)


def wheels_of(locks: Sequence[Path]) -> Path:
    """A folder with the packages of some lock files, checked by their hashes; kept in the user's cache."""
    key = cache.digest(*(lock.read_bytes() for lock in locks), layers.SITE, str(sys.version_info[:2]))
    return cache.once(cache.root() / "wheels" / key, lambda temporary: _download(temporary, locks))


def _download(folder: Path, locks: Sequence[Path]) -> None:
    print(
        "fetching wheels for an image that is built from a Dockerfile, about 30 s the first time ...", file=sys.stderr
    )
    for lock in locks:
        layers.download(folder, lock)
