"""The operator on a real API server with thousands of pods, measured in one go: `make bench-operator`.

Every pod is an object of the API server with an address 127.x.y.z of this machine, where one light process answers as
its sidecar. The operator is the real one, in a process of its own. Phases: the first start on all objects; numbers that
change all the time; edits of quotas meanwhile; numbers that stand still; a second start. What was found goes to
build/bench/operator.json.

The exit status is 1 where a figure misses its aim and nobody else was at work on the machine. Where somebody was, the
figures are hints, and it is 0.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arguments import at_least, percent, port, program, seconds

ROOT = Path(__file__).resolve().parents[3]
SUPPORT = ROOT / "tests" / "support"
OUT = ROOT / "build" / "bench" / "operator.json"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    cli = argparse.ArgumentParser(prog="tests/bench/operatorbench", description="Measure the operator.")
    cli.add_argument("--pods", type=at_least(1), default=5000, help="all pods together (%(default)s)")
    cli.add_argument("--quotas", type=at_least(1), default=200, help="all quotas together (%(default)s)")
    cli.add_argument(
        "--pools", type=at_least(1), default=20, help="over which pods and quotas are spread (%(default)s)"
    )
    cli.add_argument(
        "--scope-pool",
        type=percent,
        default=20,
        metavar="PERCENT",
        help="of the quotas hold over all pods (%(default)s)",
    )
    cli.add_argument("--seconds", type=seconds, default=120.0, help="of changing numbers (%(default)s)")
    cli.add_argument(
        "--edits", type=at_least(0), default=5, help="quotas that are edited, one after another (%(default)s)"
    )
    cli.add_argument("--patience", type=seconds, default=600.0, help="how long a phase may take (%(default)s)")
    cli.add_argument("--port", type=port, help="of the sidecars (a free one)")
    cli.add_argument(
        "--python", type=program, default=sys.executable, help="runs the operator, with this environment's packages"
    )
    cli.add_argument("--option", action="append", default=[], help="for the operator; may be given repeatedly")
    cli.add_argument("--log", type=Path, default=OUT.with_suffix(".log"), help="of the operator (%(default)s)")
    cli.add_argument("--out", type=Path, default=OUT, help="the file of all figures (%(default)s)")
    options = cli.parse_args(arguments)
    if options.pools > min(options.pods, options.quotas):
        cli.error(f"--pools {options.pools} is more than there are pods or quotas: give fewer")
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for path in (options.out, options.log):
        path.parent.mkdir(parents=True, exist_ok=True)
    options.log.unlink(missing_ok=True)
    found, shown, judged = measured(options)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(shown)
    print(f"written: {options.out}")
    print(judged or "every aim that was measured is met")
    return 1 if judged.startswith("MISSED") else 0


def measured(options: argparse.Namespace) -> tuple[dict[str, Any], str, str]:
    """All figures, the table of them, and what is wrong. Ends the process where this Python lacks what it takes."""
    sys.path.append(str(SUPPORT))
    try:
        from figures import judged, table  # noqa: PLC0415
        from phases import Site, measure  # noqa: PLC0415 - stands on SUPPORT
        from workload import Fleet  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.exit(f"this Python has no module {error.name}: run `make bench-operator`, whose Python has all of them")
    site = Site(
        fleet=Fleet(options.pods, options.quotas, options.pools, options.scope_pool),
        seconds=options.seconds,
        edits=options.edits,
        patience=options.patience,
        port=options.port,
        log=options.log,
        python=options.python,
        options=tuple(options.option),
    )
    found = asyncio.run(measure(site))
    return found, table(found), judged(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
