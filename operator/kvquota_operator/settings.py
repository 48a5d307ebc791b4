"""What a person can set when starting the operator, read from the command line and from nothing else."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from kvquota_operator import flag_values
from kvquota_operator.logs import FORMATS, LogFormat
from kvquota_operator.webhook_settings import WebhookSettings, add_flags, webhook_settings

SHORTEST_SYNC_SECONDS: Final = 0.2  # below it a pass over a large pool does not end before the next begins
LONGEST_SYNC_SECONDS: Final = 60.0  # above it `kubectl get` shows what is long over
_VERSION: Final = "--version"


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; an empty host is every address of the machine."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """The Lease by which replicas agree who leads; `namespace`: None means that of the pod."""

    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """`namespaces`: those that are served; empty means all of the cluster.

    `kubeconfig`: None means the service account of the pod. `listen`: None starts no server for probes and metrics.
    `sync_seconds`: between two questions to the same pod. `lease`: None means that this process leads without asking.
    `webhook`: None puts no pod under quota by itself.
    """

    namespaces: tuple[str, ...]
    kubeconfig: Path | None = None
    sync_seconds: float = 2.0
    listen: Address | None = None
    lease: LeaseSettings | None = None
    log_format: LogFormat = "json"
    webhook: WebhookSettings | None = None


def parse_settings(argv: Sequence[str] | None = None) -> OperatorSettings:
    """Settings of a command line. Ends the process with a usage message where it cannot be read."""
    parser = _parser()
    words = sys.argv[1:] if argv is None else argv
    beside = " ".join(word for word in words if word != _VERSION)
    if _VERSION in words and beside:
        parser.error(f"{beside} is not expected beside {_VERSION}: leave it out")
    parsed = parser.parse_args(words)
    elects = parsed.kubeconfig is None if parsed.leader_elect is None else parsed.leader_elect
    if elects and parsed.kubeconfig is not None and parsed.lease_namespace is None:
        parser.error("--leader-elect outside of a pod needs --lease-namespace: name the namespace of the Lease")
    return OperatorSettings(
        namespaces=() if parsed.all_namespaces else tuple(dict.fromkeys(parsed.namespace)),
        kubeconfig=parsed.kubeconfig,
        sync_seconds=parsed.sync_seconds,
        listen=parsed.listen,
        lease=LeaseSettings(parsed.lease_name, parsed.lease_namespace) if elects else None,
        log_format=parsed.log_format,
        webhook=webhook_settings(parser, parsed),
    )


class _TellVersion(argparse.Action):
    """The version is looked up only when it is asked for, and nothing else need be given then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        sys.stdout.write(f"kvquota-operator {metadata.version('kvquota')}\n")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kvquota-operator", description="The operator of kvquota.")
    parser.add_argument(_VERSION, action=_TellVersion, nargs=0, help="print the version and end")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--namespace",
        type=flag_values.namespace,
        action="append",
        metavar="NS",
        help="serve the pools of this namespace; may be given repeatedly",
    )
    where.add_argument("--all-namespaces", action="store_true", help="serve the pools of every namespace")
    parser.add_argument(
        "--kubeconfig", type=_existing_file, metavar="FILE", help="default: the service account of the pod"
    )
    parser.add_argument(
        "--sync-seconds",
        type=_seconds,
        default=2.0,
        metavar="N",
        help="how often each pod is asked what it holds (default: 2)",
    )
    parser.add_argument(
        "--listen",
        type=_address,
        default=Address("", 8080),
        metavar="[HOST]:PORT",
        help="where /healthz, /readyz and /metrics are (default: :8080)",
    )
    _add_lease_flags(parser)
    parser.add_argument("--log-format", choices=FORMATS, default="json", help="of the log lines (default: json)")
    add_flags(parser, _address)
    return parser


def _add_lease_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        help="of several replicas one leads, by a Lease (default: in a pod, and not with --kubeconfig)",
    )
    parser.add_argument(
        "--lease-name",
        type=flag_values.object_name,
        default="kvquota-operator",
        metavar="NAME",
        help="of the Lease (default: kvquota-operator)",
    )
    parser.add_argument(
        "--lease-namespace",
        type=flag_values.namespace,
        metavar="NS",
        help="of the Lease (default: that of the pod)",
    )


def _existing_file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a file: name a kubeconfig, or leave it out inside a pod")
    return path


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not SHORTEST_SYNC_SECONDS <= seconds <= LONGEST_SYNC_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text} is not a number of seconds from {SHORTEST_SYNC_SECONDS} to {LONGEST_SYNC_SECONDS:.0f}"
        )
    return seconds


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text} is not an address: write :8080 or 127.0.0.1:8080")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))
