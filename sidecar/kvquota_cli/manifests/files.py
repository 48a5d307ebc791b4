"""Reads manifest files from disk.

A folder is read as `kubectl apply -f` reads it: its own .yaml, .yml and .json files, not those of sub-folders, and not
names that begin with a dot (editors' and the kubelet's own).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvquota_cli.errors import CliError
from kvquota_cli.manifests.documents import Document, ManifestError, read_documents
from kvquota_cli.manifests.places import Finding, Place

MAX_BYTES: Final = 3 * 2**20  # of one file; an API server takes no larger request
_SUFFIXES: Final = (".yaml", ".yml", ".json")


def manifest_files(path: Path) -> tuple[Path, ...]:
    """The manifest files of a folder, by name. Raises OSError."""
    return tuple(
        each
        for each in sorted(path.iterdir())
        if each.suffix in _SUFFIXES and not each.name.startswith(".") and each.is_file()
    )


def expand(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Files and folders to files. Raises CliError for what is not there and for a folder without manifests."""
    files: list[Path] = []
    for path in paths:
        inside = _expanded(path)
        if not inside:
            raise CliError(
                f"{path} holds no .yaml, .yml or .json file, and sub-folders are not read: name the right one"
            )
        files += inside
    return tuple(dict.fromkeys(files))


def _expanded(path: Path) -> tuple[Path, ...]:
    try:
        return manifest_files(path) if path.is_dir() else (_existing(path),)
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}; name a manifest file or a folder of them") from error


def _existing(path: Path) -> Path:
    path.stat()
    return path


def read_file(path: Path) -> str:
    """Text of a file. Raises ManifestError that says why it cannot be one."""
    place = Place(str(path), 1)
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(Finding(place, f"cannot be read: {error.strerror}")) from error
    if len(data) > MAX_BYTES:
        raise ManifestError(Finding(place, f"is larger than {MAX_BYTES // 2**20} MiB: split it"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ManifestError(Finding(Place(str(path), line), "is not UTF-8 text: save it as UTF-8")) from error


def read_all(paths: Sequence[Path]) -> tuple[tuple[Document, ...], tuple[Finding, ...]]:
    """Documents of all files that can be read, and a finding for each that cannot."""
    documents: list[Document] = []
    findings: list[Finding] = []
    for path in paths:
        try:
            documents += read_documents(read_file(path), str(path))
        except ManifestError as error:
            findings.append(error.finding)
    return tuple(documents), tuple(findings)
