"""The sidecar beside known proxies, measured in one go: `make bench-sidecar`, with ARGS for options.

Writes a config in which one tenant has room for all that the load asks (in the parts `refuse` and `refuse-new`, for
nothing or for one stream), starts the sidecar on it, and lets proxybench compare it with its peers, part by part. All
that was measured, and how it stands to what is aimed at, goes to build/bench/sidecar.json. A figure that misses its aim
is said, and is no failure.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aims
import builds
import site_files
from operatorbench.arguments import program, python_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SUPPORT = ROOT / "tests" / "support"
OUT = ROOT / "build" / "bench" / "sidecar.json"
PARTS = {
    "compare": (),
    "tail": ("--tests", "S20x1024,W20x1024", "--peers", "nginx,envoy"),  # the others have not enough of a core
    "refuse": ("--refuse",),
    "refuse-new": ("--refuse-new",),
    "neighbour": ("--neighbour", f"Authorization: Bearer {site_files.OTHER_KEY}"),
    "disconnect": ("--disconnect",),
    "stall": ("--stall",),
}
ROOM = {"refuse": site_files.NOTHING, "refuse-new": site_files.LITTLE}  # blocks; plenty in the other parts
TESTS = "L1,T64,B100K,S20x256,S50x1024"
PEERS = "nginx,envoy,haproxy,vllm-router,aiohttp"
ALONE = frozenset({"refuse", "refuse-new", "neighbour"})  # parts in which the peers have nothing to show


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Own options, and those that are passed to proxybench."""
    cli = argparse.ArgumentParser(prog="tests/bench", description="Measure the sidecar beside known proxies.")
    cli.add_argument("--parts", type=parts, default=list(PARTS), help=f"what is measured, of {','.join(PARTS)} (all)")
    cli.add_argument("--peers", default=PEERS, help="the proxies beside it (%(default)s)")
    cli.add_argument("--tests", type=some, default=TESTS, help="of the part compare (%(default)s)")
    cli.add_argument("--rounds", type=rounds, default="3", help="of each part (%(default)s)")
    cli.add_argument(
        "--python", type=program, default=sys.executable, help="runs the sidecar, with this environment's packages"
    )
    cli.add_argument(
        "--interpreted",
        dest="build",
        action="store_const",
        const="interpreted",
        default="compiled",
        help="measure the sources as they stand (the compiled sidecar)",
    )
    cli.add_argument("--out", type=Path, default=OUT, help="the file of all figures (%(default)s)")
    return cli.parse_known_args(arguments)


def parts(text: str) -> list[str]:
    """Names of `PARTS`, separated by commas."""
    names = text.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(
            f"there is no part {', '.join(map(repr, unknown))}; name some of {','.join(PARTS)}"
        )
    return names


def some(text: str) -> str:
    """Names that proxybench knows, at least one."""
    if not text.strip(","):
        raise argparse.ArgumentTypeError(f"nothing is named; name some of {TESTS}")
    return text


def rounds(text: str) -> str:
    """How often, at least once."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return text


def main(arguments: Sequence[str]) -> int:
    options, others = parse(arguments)
    search = [word for folder in peers_folders() for word in ("--search", str(folder))]
    environ = {**os.environ, "PYTHONPATH": packages(options.python, options.build)}
    found: dict[str, Any] = {
        "sidecar": builds.told(options.python, environ),
        "python": python_of(options.python),
    }
    print(f"bench: {found['sidecar']}", file=sys.stderr, flush=True)
    for part in options.parts:
        print(f"bench: {part}", file=sys.stderr, flush=True)
        measured = measure(part, options, [*search, *others], environ)
        if measured is None:
            return 1
        found[part] = measured
    found["aims"] = aims.judged(found)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(aims.table(found["aims"]))
    print(f"written: {options.out}")
    return 0


def peers_folders() -> list[Path]:
    """Where the programs of the peers are."""
    sys.path.append(str(SUPPORT))
    import peers  # noqa: PLC0415 - stands on SUPPORT

    return peers.folders()


def measure(
    part: str, options: argparse.Namespace, others: Sequence[str], environ: dict[str, str]
) -> dict[str, Any] | None:
    """What proxybench found in one part; None where it could not be run."""
    with tempfile.TemporaryDirectory(prefix="kvquota-bench-") as name:
        folder = Path(name)
        site_files.write(folder, ROOM.get(part, site_files.PLENTY), neighbour=part == "neighbour")
        out = folder / "found.json"
        bench = [
            sys.executable,
            str(HERE / "proxybench" / "bench.py"),
            "--sidecar",
            str(free_port()),
            "--out",
            str(out),
        ]
        bench += ["--peers", "" if part in ALONE else options.peers, "--tests", options.tests]
        bench += ["--rounds", options.rounds, "--header", f"Authorization: Bearer {site_files.KEY}", *PARTS[part]]
        command = [*bench, *others, "--", *sidecar(options.python, folder)]
        done = subprocess.run(command, env=environ, check=False)
        found: dict[str, Any] | None = json.loads(out.read_text()) if done.returncode == 0 else None
        return found


def sidecar(python: str, folder: Path) -> list[str]:
    """The command of the sidecar, with the places that proxybench fills in."""
    program = [python, "-m", "kvquota_sidecar", "--listen", "127.0.0.1:{port}", "--engine", "{upstream}"]
    files = ["--config", str(folder / "config.json"), "--identity", str(folder)]
    return [*program, "--admin", f"127.0.0.1:{free_port()}", *files]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def packages(python: str, build: builds.Build) -> str:
    """PYTHONPATH: the sidecar to measure, and for another interpreter than our own this environment's packages."""
    if python == sys.executable:
        return builds.path(build)
    return os.pathsep.join([builds.path(build), str(ROOT / "crds"), sysconfig.get_path("purelib")])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
