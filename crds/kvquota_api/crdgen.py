"""Write the CRDs into folders, or say which files there are not what the models say.

python -m kvquota_api.crdgen [--check] FOLDER...
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import yaml

from kvquota_api.crd import RESOURCES, custom_resource_definition
from kvquota_api.meta import GROUP

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


def differences(folders: Iterable[Path]) -> list[str]:
    """One text for every file that is missing or is not what the models say, with the first lines that differ."""
    generated = generated_files()
    pairs = [(folder / name, content) for folder in folders for name, content in generated.items()]
    read = [(path, path.read_text("utf-8") if path.exists() else "", wanted) for path, wanted in pairs]
    return [_difference(path, present, wanted) for path, present, wanted in read if present != wanted]


def _difference(path: Path, present: str, wanted: str) -> str:
    if not present:
        return f"{path} is missing"
    lines = list(difflib.unified_diff(present.splitlines(), wanted.splitlines(), str(path), "generated", lineterm=""))
    more = [f"… and {len(lines) - SHOWN_LINES} lines more"] if len(lines) > SHOWN_LINES else []
    return "\n".join((*lines[:SHOWN_LINES], *more))


def write(folders: Iterable[Path]) -> None:
    """Write every CRD into every folder, which is made if need be."""
    generated = generated_files()
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in generated.items():
            (folder / name).write_text(content, "utf-8")


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0, or 1 when --check found a difference."""
    parser = argparse.ArgumentParser(prog="python -m kvquota_api.crdgen", description="Write the CRDs from the models.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is not up to date")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parsed = parser.parse_args(arguments)
    if not parsed.check:
        write(parsed.folders)
        return 0
    found = differences(parsed.folders)
    if found:
        sys.stderr.write("\n".join((*found, "The CRDs are not what the models say: run `make crds`.", "")))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
