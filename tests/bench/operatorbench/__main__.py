"""The operator on a real API server with thousands of pods, measured in one go: `make bench-operator`.

Every pod is an object of the API server with an address 127.x.y.z of this machine, where one light process answers as
its sidecar. The operator is the real one, in a process of its own. Phases: the first start on all objects; numbers that
change all the time; edits of quotas meanwhile; numbers that stand still; a second start. What was found goes to
build/bench/operator.json. A figure that misses its aim is said, and is no failure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from figures import table
from phases import Site, measure
from workload import Fleet

ROOT = Path(__file__).resolve().parents[3]
OUT = ROOT / "build" / "bench" / "operator.json"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    cli = argparse.ArgumentParser(prog="tests/bench/operatorbench", description="Measure the operator.")
    cli.add_argument("--pods", type=int, default=5000, help="all pods together (%(default)s)")
    cli.add_argument("--quotas", type=int, default=200, help="all quotas together (%(default)s)")
    cli.add_argument("--pools", type=int, default=20, help="over which pods and quotas are spread (%(default)s)")
    cli.add_argument("--seconds", type=float, default=120.0, help="of changing numbers (%(default)s)")
    cli.add_argument("--edits", type=int, default=5, help="quotas that are edited, one after another (%(default)s)")
    cli.add_argument("--patience", type=float, default=600.0, help="how long a phase may take (%(default)s)")
    cli.add_argument("--port", type=int, help="of the sidecars (a free one)")
    cli.add_argument("--option", action="append", default=[], help="for the operator; may be given repeatedly")
    cli.add_argument("--log", type=Path, default=OUT.with_suffix(".log"), help="of the operator (%(default)s)")
    cli.add_argument("--out", type=Path, default=OUT, help="the file of all figures (%(default)s)")
    return cli.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for path in (options.out, options.log):
        path.parent.mkdir(parents=True, exist_ok=True)
    options.log.unlink(missing_ok=True)
    site = Site(
        fleet=Fleet(options.pods, options.quotas, options.pools),
        seconds=options.seconds,
        edits=options.edits,
        patience=options.patience,
        port=options.port,
        log=options.log,
        options=tuple(options.option),
    )
    found = asyncio.run(measure(site))
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    print(f"written: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
