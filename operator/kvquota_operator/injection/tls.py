"""The certificate of an engine that serves TLS: it goes with the port to the sidecar, and the engine goes on without.

Decides whether that can be done, and with which files. Pure. Invariants:

1. Clients see the same certificate as before, from the same volume; the sidecar reads it again when it is renewed.
2. What the sidecar could not do in the engine's place (ask clients for certificates) is refused, not left out.

It does not know who may read the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvquota_api.model_pool import ModelPoolSpec
from kvquota_operator.injection.commands import values

CERTIFICATE: Final = "--ssl-certfile"
KEY: Final = "--ssl-keyfile"
AUTHORITIES: Final = "--ssl-ca-certs"
_OF_ANY_ENGINE: Final = (CERTIFICATE, KEY, AUTHORITIES, "--ssl-cert-file", "--ssl-key-file")
WITHOUT: Final = (f"{CERTIFICATE}=", f"{KEY}=")  # of vLLM, whose parser takes an empty value for none


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths in the sidecar as in the engine; `mounts` are what they lie on."""

    certificate: str
    key: str
    mounts: tuple[Mapping[str, Any], ...]


def stated_tls(words: Sequence[str]) -> tuple[str, ...]:
    """The options of the command line that are about TLS and say something."""
    return tuple(name for name in _OF_ANY_ENGINE if any(values(words, name)))


def tls_files(spec: ModelPoolSpec, container: Mapping[str, Any], words: Sequence[str]) -> TlsFiles | None:
    """What the sidecar takes over; None where there is no TLS, or where it cannot be taken over."""
    if spec.engine.type != "vLLM" or spec.sidecar.takeover == "None" or set(stated_tls(words)) != {CERTIFICATE, KEY}:
        return None
    certificate, key = (next(value for value in reversed(values(words, name)) if value) for name in (CERTIFICATE, KEY))
    mounts = [_mount(container.get("volumeMounts") or [], path) for path in (certificate, key)]
    found = [{**mount, "readOnly": True} for mount in mounts if mount is not None]
    if len(found) < len(mounts):
        return None
    return TlsFiles(certificate, key, tuple(found[:1] if found[0] == found[1] else found))


def _mount(mounts: Iterable[Mapping[str, Any]], path: str) -> Mapping[str, Any] | None:
    """The innermost one that `path` lies on."""
    over = [each for each in mounts if f"{path}/".startswith(f"{each['mountPath'].rstrip('/')}/")]
    return max(over, key=lambda each: len(each["mountPath"]), default=None)
