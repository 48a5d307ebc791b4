"""Reads manifest files from disk.

A folder is read as `kubectl apply -f` reads it: its own .yaml, .yml and .json files, not those of sub-folders, and not
names that begin with a dot (editors' and the kubelet's own). What has the name of a manifest and is none is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvquota_cli.errors import CliError
from kvquota_cli.manifests.documents import Document, ManifestError, read_documents
from kvquota_cli.manifests.places import Finding, Place

MAX_BYTES: Final = 3 * 2**20  # of one file; an API server takes no larger request
_SUFFIXES: Final = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Found:
    """`files` may be read; `findings`: what is named like them and is no file."""

    files: tuple[Path, ...]
    findings: tuple[Finding, ...] = ()


def found_in(folder: Path) -> Found:
    """The manifest files of a folder, by name. Raises OSError."""
    named = [each for each in sorted(folder.iterdir()) if each.suffix in _SUFFIXES and not each.name.startswith(".")]
    odd = [_oddity(each) for each in named if not each.is_file()]
    return Found(tuple(each for each in named if each.is_file()), tuple(each for each in odd if each is not None))


def _oddity(path: Path) -> Finding | None:
    """Why a name is no file that can be read; None where it is gone meanwhile."""
    place = Place(str(path), 1)
    if path.is_dir():
        return Finding(place, "is a folder, and sub-folders are not read: name it by itself", severity="warning")
    if path.exists():
        return Finding(place, "is no file (a pipe, a socket or a device), so it is not read: take it away")
    if path.is_symlink():
        return Finding(place, "is a link to a file that is not there: mend it, or take it away")
    return None


def expand(paths: Sequence[Path]) -> Found:
    """Files and folders to files. Raises CliError for what is not there and for a folder without manifests."""
    files: list[Path] = []
    findings: list[Finding] = []
    for path in paths:
        inside = _expanded(path)
        if inside == Found(()):
            raise CliError(
                f"{path} holds no .yaml, .yml or .json file, and sub-folders are not read: name the right one"
            )
        files += inside.files
        findings += inside.findings
    return Found(tuple(dict.fromkeys(files)), tuple(dict.fromkeys(findings)))


def _expanded(path: Path) -> Found:
    try:
        return found_in(path) if path.is_dir() else Found((_existing(path),))
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


def read_all(found: Found) -> tuple[tuple[Document, ...], tuple[Finding, ...]]:
    """Documents of all files that can be read, and a finding for each that cannot."""
    documents: list[Document] = []
    findings = list(found.findings)
    for path in found.files:
        try:
            documents += read_documents(read_file(path), str(path))
        except ManifestError as error:
            findings.append(error.finding)
    return tuple(documents), tuple(findings)
