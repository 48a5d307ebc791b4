"""Write container images as docker-archive files, which `Node.load_image` imports: no registry, no container daemon."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testcluster import cache, layers
from testcluster.debian import python_rootfs

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What a container of the image runs, as whom and with which environment."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = f"{layers.USER_ID}:{layers.USER_ID}"
    env: Mapping[str, str] = field(default_factory=dict)

    def document(self, layer_digests: Sequence[str]) -> bytes:
        """The image's JSON configuration; `layer_digests` are SHA-256 in hex, the lowest layer first."""
        machine = platform.machine()
        config = {
            "Entrypoint": list(self.entrypoint),
            "Cmd": list(self.command),
            "User": self.user,
            "WorkingDir": "/",
            "Env": [f"{name}={value}" for name, value in {"PATH": _PATH, **self.env}.items()],
        }
        document = {
            "architecture": _ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in layer_digests]},
        }
        return json.dumps(document, sort_keys=True).encode()


def write_image(target: Path, reference: str, stack: Sequence[Path], config: ImageConfig) -> Path:
    """Write one image called `reference` (NAME:TAG, the tag not `latest`) from layer tars, the lowest first."""
    digests = [cache.file_digest(layer) for layer in stack]
    document = config.document(digests)
    name = f"{hashlib.sha256(document).hexdigest()}.json"
    paths = [f"{digest}/layer.tar" for digest in digests]
    manifest = json.dumps([{"Config": name, "RepoTags": [reference], "Layers": paths}]).encode()
    with tarfile.open(target, "w") as tar:
        _add_bytes(tar, name, document)
        _add_bytes(tar, "manifest.json", manifest)
        for path, layer in dict(zip(paths, stack, strict=True)).items():
            tar.add(layer, arcname=path)
    return target


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def python_image(
    directory: Path,
    reference: str,
    *,
    lock: Path | None = None,
    wheels: Sequence[Path] = (),
    entrypoint: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Path:
    """Write a non-root image with Python, the packages of a lock file and those of some wheels into `directory`.

    Only the first use of a lock file needs the network. Modules are found through `PYTHONPATH`, console scripts are not
    on `PATH`: let `entrypoint` be such as `("python3", "-m", "package")`. It runs with a read-only root file system.
    """
    stem = hashlib.sha256(reference.encode()).hexdigest()[:12]
    stack = [python_rootfs(), layers.account_layer(directory / f"{stem}-accounts.tar")]
    if lock is not None:
        stack.append(layers.dependency_layer(lock))
    if wheels:
        stack.append(layers.wheel_layer(directory / f"{stem}-wheels.tar", wheels))
    base_env = {"HOME": "/tmp", "PYTHONPATH": layers.SITE, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    config = ImageConfig(entrypoint=tuple(entrypoint), env={**base_env, **(env or {})})
    return write_image(directory / f"{stem}.tar", reference, stack, config)


def program_image(directory: Path, reference: str, program: Path) -> Path:
    """Write an image that holds and runs one static program into `directory`."""
    layer = layers.program_layer(directory / f"{program.name}-layer.tar", program, f"/{program.name}")
    return write_image(directory / f"{program.name}.tar", reference, [layer], ImageConfig((f"/{program.name}",)))
