"""Looks at a folder of manifests. Blocking: the loop calls it in a thread."""

from __future__ import annotations

from pathlib import Path

from kvquota_cli.manifests.documents import ManifestError
from kvquota_cli.manifests.files import found_in, read_file
from kvquota_cli.manifests.last_good import Look
from kvquota_cli.manifests.places import Finding


def look_at(folder: Path) -> Look:
    """What the folder holds now, by path. Raises OSError where the folder itself cannot be read."""
    found = found_in(folder)
    odd = {each.place.file: each for each in found.findings}
    return {**odd, **{str(path): _text(path) for path in found.files}}


def _text(path: Path) -> str | Finding:
    try:
        return read_file(path)
    except ManifestError as error:
        return error.finding
