"""Find the programs that tests run, building each once from its pinned Go module.

`KUBEBUILDER_ASSETS` wins where it has the program, then the user's cache, then a build. The pins are the go.mod and
go.sum files below tests/tools; the cache is keyed by their content, so a changed pin is a new build.
"""

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from testcluster import cache
from testcluster.errors import PartError

KUBERNETES_VERSION = "v1.36.3"
ETCD_VERSION = "v3.6.8"
HELM_VERSION = "v4.3.1"

BUILD_TIMEOUT_S = 3600.0
"""Seconds one build may take: the longest needs 200 s on two idle cores, with downloads on a slow line far more."""

_TOOLS = Path(__file__).parents[2] / "tools"


class AssetError(PartError):
    """A program is neither given nor cached, and cannot be built here."""


@dataclass(frozen=True, slots=True)
class Module:
    """A Go module below tests/tools, with the linker variables that its programs are built with."""

    name: str
    version: str
    variables: tuple[str, ...] = ()

    @property
    def source(self) -> Path:
        """Where its pins are, whatever the working directory is."""
        return _TOOLS / self.name

    @property
    def directory(self) -> Path:
        """Where the user's cache keeps its programs, by version and by the content of the pins."""
        pins = [path.read_bytes() for path in sorted(self.source.iterdir()) if path.suffix in {".mod", ".sum", ".go"}]
        key = cache.digest(platform.system(), platform.machine(), *self.variables, *pins)
        return cache.root() / self.name / f"{self.version}-{key}"


@dataclass(frozen=True, slots=True)
class Asset:
    """One program: its module, package and version, and how many seconds a first build takes on two idle cores."""

    name: str
    module: Module
    package: str
    version: str
    first_build_s: int


_MAJOR, _MINOR, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
_COMPONENT = "k8s.io/component-base/version"
_KUBERNETES = Module(
    "kubernetes",
    KUBERNETES_VERSION,
    (
        f"{_COMPONENT}.gitVersion={KUBERNETES_VERSION}",
        f"{_COMPONENT}.gitMajor={_MAJOR}",
        f"{_COMPONENT}.gitMinor={_MINOR}",
    ),
)
_HELM = Module("helm", HELM_VERSION, (f"helm.sh/helm/v4/internal/version.version={HELM_VERSION}",))
_PAUSE = Module("pause", "v1")


def _kubernetes(name: str, first_build_s: int) -> Asset:
    return Asset(name, _KUBERNETES, f"k8s.io/kubernetes/cmd/{name}", KUBERNETES_VERSION, first_build_s)


ASSETS: Mapping[str, Asset] = {
    asset.name: asset
    for asset in (
        _kubernetes("kube-apiserver", 200),
        Asset("etcd", _KUBERNETES, "go.etcd.io/etcd/server/v3", ETCD_VERSION, 90),
        _kubernetes("kubectl", 40),
        _kubernetes("kubelet", 70),
        _kubernetes("kube-controller-manager", 40),
        _kubernetes("kube-scheduler", 10),
        Asset("helm", _HELM, "helm.sh/helm/v4/cmd/helm", HELM_VERSION, 140),
        Asset("pause", _PAUSE, ".", _PAUSE.version, 5),
    )
}


def find(name: str) -> Path:
    """Path of one of `ASSETS`, built now if it must be. Raises `AssetError` that says what to install or to set."""
    if (given := _given(name, os.environ)) is not None:
        return given
    asset = ASSETS[name]
    return cache.once(asset.module.directory / name, lambda temporary: _build(asset, temporary))


def _given(name: str, environ: Mapping[str, str]) -> Path | None:
    directory = environ.get("KUBEBUILDER_ASSETS")
    if not directory:
        return None
    path = Path(directory).absolute() / name
    return path if path.is_file() and os.access(path, os.X_OK) else None


def _build(asset: Asset, target: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise AssetError(
            f"{asset.name} {asset.version} is not cached in {asset.module.directory} and cannot be built: no `go` on "
            f"PATH. Install Go 1.26 or newer, or set KUBEBUILDER_ASSETS to a directory that holds {asset.name}"
        )
    _say(f"building {asset.name} {asset.version} from Go modules, about {asset.first_build_s} s the first time ...")
    started = time.monotonic()
    _compile(asset, go, target)
    _say(f"built {asset.name} in {time.monotonic() - started:.0f} s: {asset.module.directory / asset.name}")


def _compile(asset: Asset, go: str, target: Path) -> None:
    flags = " ".join(["-s -w", *(f"-X {variable}" for variable in asset.module.variables)])
    done = subprocess.run(
        [go, "build", "-mod=readonly", "-trimpath", "-ldflags", flags, "-o", str(target), asset.package],
        cwd=asset.module.source,
        env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"},
        timeout=BUILD_TIMEOUT_S,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise AssetError(
            f"building {asset.name} {asset.version} in {asset.module.source} failed:\n{done.stderr.strip()[-4000:]}\n"
            f"The first build needs the Go module proxy; or set KUBEBUILDER_ASSETS to a directory with {asset.name}"
        )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(names: list[str], find: Callable[[str], Path] = find) -> int:
    """Make sure that the named programs, or all of them, are there; print their paths. Returns the exit code."""
    unknown = sorted(set(names) - set(ASSETS))
    if unknown:
        _say(f"unknown: {', '.join(unknown)}; known: {', '.join(ASSETS)}")
        return 2
    try:
        for name in names or ASSETS:
            print(find(name), flush=True)
    except PartError as error:
        _say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
