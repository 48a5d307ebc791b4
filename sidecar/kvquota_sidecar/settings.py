"""What a sidecar is started with: flags, else KVQUOTA_* environment variables, else defaults.

Every flag `--some-name` may be given as KVQUOTA_SOME_NAME. A value that does not fit is one sentence, not a traceback.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Final, NoReturn, get_args

from kvquota_api.meta import ADMIN_PORT
from kvquota_api.pod_config import FailurePolicy
from kvquota_sidecar import compiled
from kvquota_sidecar.proxy.engine_side import EngineAddress
from kvquota_sidecar.proxy.hub import Patience
from kvquota_sidecar.tls import CertificateFiles

ENV_PREFIX: Final = "KVQUOTA_"
MIB: Final = 1024 * 1024
PROGRAM_BYTES: Final = 64 * MIB  # of memory, for all but bodies


_DESCRIPTION: Final = (
    "Quotas on the KV-cache memory of one engine: takes the engine's port, lets in what its tenant has room for and"
    " refuses the rest. Every option may also be given as the environment variable in brackets, which an option wins"
    " over; behind it stands what holds without either. In a pod the operator writes these options; without a cluster"
    " `kvquota serve` starts it with a folder of manifests."
)


class SettingsError(ValueError):
    """A setting that does not fit; the text is a sentence that names it and says what would."""


@dataclass(frozen=True, slots=True)
class Bind:
    """Where to listen; port 0 takes any that is free."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`config`: a file; `identity`: a folder with identity.json and token; either may not be there yet, or be None.

    `token`: the channel's, for a sidecar inside another program; else it is read from the folder. `node_addresses`:
    who besides this pod and its gateway may start the drain. `drain_seconds`: how long running requests may go on
    (below the pod's grace period); `lame_duck_seconds`: how long new ones are still taken then. `silence_seconds`: how
    long an engine may send nothing for a request. `drain_hook`: whether the admin port can begin the drain, as a
    kubelet asks it to. `hang_seconds`: how long the program may show no sign of life to its supervisor. `tls`: of the
    traffic port; None: plain. `settle_seconds`: how long it is not ready at first, while the engine may still work for
    clients of before. Other seconds are periods.
    """

    listen: Bind = Bind("0.0.0.0", 8000)  # noqa: S104 - it takes the engine's port, which is open to the cluster
    engine: EngineAddress = field(default_factory=lambda: EngineAddress("127.0.0.1", 18000))
    admin: Bind = Bind("0.0.0.0", ADMIN_PORT)  # noqa: S104 - the kubelet and the operator call it
    config: Path | None = None
    identity: Path | None = None
    token: str = ""
    failure_policy: FailurePolicy = "Closed"
    pod_uid: str = ""
    node_addresses: tuple[str, ...] = ()
    drain_seconds: float = 50.0
    drain_hook: bool = True
    lame_duck_seconds: float = 3.0
    silence_seconds: float = 600.0
    sample_seconds: float = 1.0
    files_seconds: float = 2.0
    hang_seconds: float = 10.0
    settle_seconds: float = 5.0  # an engine ends what clients have left within a step or two; a busy one takes longer
    tls: CertificateFiles | None = None
    patience: Patience = field(default_factory=Patience)


def read_settings(arguments: Sequence[str], environ: Mapping[str, str], *, memory_bytes: int | None = None) -> Settings:
    """The settings of a command line and an environment. `memory_bytes`: what the process may use; None: no limit.

    Raises SettingsError.
    """
    parser = _parser(environ)
    given = parser.parse_args(list(arguments))
    if given.version:
        _tell_version()
        parser.exit()
    policy = _policy(given.failure_policy)
    return Settings(
        listen=_bind("--listen", given.listen),
        engine=_engine(given.engine),
        admin=_bind("--admin", given.admin),
        config=Path(given.config) if given.config else None,
        identity=Path(given.identity) if given.identity else None,
        failure_policy=policy,
        pod_uid=given.pod_uid,
        node_addresses=tuple(each.strip() for each in given.node_address.split(",") if each.strip()),
        drain_seconds=_number("--drain-seconds", given.drain_seconds, least=0.0),
        lame_duck_seconds=_number("--lame-duck-seconds", given.lame_duck_seconds, least=0.0),
        silence_seconds=_number("--engine-silence-seconds", given.engine_silence_seconds, least=0.001),
        sample_seconds=_number("--sample-seconds", given.sample_seconds, least=0.05),
        files_seconds=_number("--files-seconds", given.files_seconds, least=0.05),
        hang_seconds=_number("--hang-seconds", given.hang_seconds, least=1.0),
        tls=_tls(given.tls_cert, given.tls_key),
        patience=_patience(given, memory_bytes),
    )


def _patience(given: argparse.Namespace, memory_bytes: int | None) -> Patience:
    body = round(_number("--max-body-mib", given.max_body_mib, least=0.001) * MIB)
    buffered = _buffered(memory_bytes)
    if given.max_buffered_mib:
        buffered = round(_number("--max-buffered-mib", given.max_buffered_mib, least=0.001) * MIB)
    return Patience(
        max_body_bytes=body,
        max_held_bytes=max(body, buffered),
        max_connections=round(_number("--max-connections", given.max_connections, least=1)),
    )


def _buffered(memory_bytes: int | None) -> int:
    """A body is held up to three times for a moment: as it came, as the engine gets it, and on its way there."""
    if memory_bytes is None:
        return Patience().max_held_bytes
    return (memory_bytes - PROGRAM_BYTES) // 3


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; see --help")


def _tell_version() -> None:
    """The version is looked up only when it is asked for."""
    sys.stdout.write(f"kvquota-sidecar {metadata.version('kvquota')} ({compiled.build()})\n")


def _parser(environ: Mapping[str, str]) -> _Parser:
    parser = _Parser(prog="kvquota-sidecar", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version and end")

    def flag(name: str, default: str, told: str) -> None:
        variable = ENV_PREFIX + name.lstrip("-").replace("-", "_").upper()
        parser.add_argument(
            name, default=environ.get(variable, default), help=f"{told} [{variable}; {default or 'none'}]"
        )

    flag("--listen", "0.0.0.0:8000", "HOST:PORT of the traffic: the engine's own port")
    flag("--engine", "http://127.0.0.1:18000", "URL of the engine")
    flag("--admin", f"0.0.0.0:{ADMIN_PORT}", "HOST:PORT for the operator, probes and metrics")
    flag("--config", "", "file of the config")
    flag("--identity", "", "folder with identity.json and token")
    flag("--failure-policy", "Closed", "before the first config: Closed refuses, Open lets through and counts")
    flag("--pod-uid", "", "uid of this pod: a config for another one is refused")
    flag("--node-address", "", "addresses of the node, separated by commas: they may start the drain too")
    flag("--drain-seconds", "50", "how long running requests may go on when the pod leaves")
    flag("--lame-duck-seconds", "3", "how long new requests are still taken then")
    flag("--engine-silence-seconds", "600", "how long the engine may send nothing for a request")
    flag("--sample-seconds", "1", "between two readings of the engine's metrics")
    flag("--files-seconds", "2", "between two looks at the files")
    flag("--hang-seconds", "10", "without a sign of life, after which the program is started anew")
    flag("--tls-cert", "", "PEM file of the traffic port's certificate and its issuers; none: no TLS")
    flag("--tls-key", "", "PEM file of the certificate's key; both are read again when they change")
    flag("--max-body-mib", "8", "the largest request body, in MiB")
    flag(
        "--max-buffered-mib", "", "of all bodies together; none: a third of the memory limit less 64 MiB, else 256 MiB"
    )
    flag("--max-connections", "8192", "of clients, at a time; fewer where the limit on open files has no room for them")
    return parser


def _tls(certificate: str, key: str) -> CertificateFiles | None:
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise SettingsError("--tls-cert and --tls-key belong together: give both, or neither")
    return CertificateFiles(Path(certificate), Path(key))


def _policy(text: str) -> FailurePolicy:
    policies: tuple[FailurePolicy, ...] = get_args(FailurePolicy)
    for policy in policies:
        if text == policy:
            return policy
    raise SettingsError(f"--failure-policy is Closed or Open, not {text!r}")


def _bind(name: str, text: str) -> Bind:
    host, colon, port = text.rpartition(":")
    is_whole = host.startswith("[") == host.endswith("]")
    if not colon or not is_whole or not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"{name} is HOST:PORT with a port from 0 to 65535, not {text!r}")
    return Bind(host.strip("[]"), int(port))


def _engine(text: str) -> EngineAddress:
    scheme, mark, authority = text.partition("://")
    if not mark or scheme != "http":
        raise SettingsError(f"--engine is http://HOST:PORT, not {text!r}")
    try:
        bind = _bind("--engine", authority.rstrip("/"))
    except SettingsError as error:
        raise SettingsError(f"--engine is http://HOST:PORT with a port from 1 to 65535, not {text!r}") from error
    if not bind.host or bind.port == 0:
        raise SettingsError(f"--engine needs a host and a port, as in http://127.0.0.1:18000, not {text!r}")
    return EngineAddress(bind.host, bind.port)


def _number(name: str, text: str, *, least: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value < 10**9:
        raise SettingsError(f"{name} is a number of at least {least:g}, not {text!r}")
    return value
