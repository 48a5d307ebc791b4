"""Write the CRDs into folders and the reference into a file, or say which are not what the models say.

python -m kvquota_api.crdgen [--check] [--reference FILE] FOLDER...
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from kvquota_api.crd import RESOURCES, custom_resource_definition
from kvquota_api.meta import GROUP
from kvquota_api.reference import reference

HEADER: Final = "# Generated from the models in crds/kvquota_api by `make crds`; edit those.\n"
SHOWN_LINES: Final = 20  # of a difference: enough to see what it is about


class _Dumper(yaml.SafeDumper):
    """YAML without anchors, which people do not expect in a manifest."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def generated_files() -> dict[str, str]:
    """File name -> content of every CRD; the same in every run."""
    return {
        f"{GROUP}_{resource.plural}.yaml": HEADER
        + yaml.dump(
            custom_resource_definition(resource), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100
        )
        for resource in RESOURCES
    }


def wanted_files(folders: Iterable[Path], described: Path | None = None) -> dict[Path, str]:
    """Path -> content of every CRD in every folder, and of the reference where a file for it is given."""
    generated = generated_files()
    crds = {folder / name: content for folder in folders for name, content in generated.items()}
    return crds if described is None else {**crds, described: reference()}


def differences(wanted: Mapping[Path, str]) -> list[str]:
    """One text for every file that is missing or is not as wanted, with the first lines that differ."""
    read = [(path, path.read_text("utf-8") if path.exists() else "", content) for path, content in wanted.items()]
    return [_difference(path, present, content) for path, present, content in read if present != content]


def _difference(path: Path, present: str, wanted: str) -> str:
    if not present:
        return f"{path} is missing"
    lines = list(difflib.unified_diff(present.splitlines(), wanted.splitlines(), str(path), "generated", lineterm=""))
    more = [f"… and {len(lines) - SHOWN_LINES} lines more"] if len(lines) > SHOWN_LINES else []
    return "\n".join((*lines[:SHOWN_LINES], *more))


def write(wanted: Mapping[Path, str]) -> None:
    """Write every file; its folder is made if need be."""
    for path, content in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, "utf-8")


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0, or 1 when --check found a difference."""
    parser = argparse.ArgumentParser(prog="python -m kvquota_api.crdgen", description="Write the CRDs from the models.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is not up to date")
    parser.add_argument("--reference", type=Path, metavar="FILE", help="the reference of the fields, as Markdown")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parsed = parser.parse_args(arguments)
    wanted = wanted_files(parsed.folders, parsed.reference)
    if not parsed.check:
        write(wanted)
        return 0
    found = differences(wanted)
    if found:
        sys.stderr.write("\n".join((*found, "The CRDs are not what the models say: run `make crds`.", "")))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
