"""API keys and the Secrets that hold them.

Decides how a key looks and how its Secret is written. Pure: randomness is passed in.

Invariants:

1. A key has 256 random bits, so it is never WeakAPIKey.
2. What is printed for a Secret is one YAML document, ready to apply; all else in it is a comment.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from kvquota_api.meta import API_KEY_SECRET_TYPE, DNS_LABEL_PATTERN, DNS_NAME_PATTERN, SECRET_KEY_PATTERN

KEY_BYTES: Final = 32  # 256 bits; twice the least that is accepted

_LABEL: Final = re.compile(DNS_LABEL_PATTERN)
_SUBDOMAIN: Final = re.compile(DNS_NAME_PATTERN)
_ENTRY: Final = re.compile(SECRET_KEY_PATTERN)
_READ_AS_OTHER: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})  # in YAML 1.1


class InvalidNameError(ValueError):
    """A name that Kubernetes would refuse; the text says what is allowed."""


def new_key(random_bytes: Callable[[int], bytes]) -> str:
    """`kvq-` and 64 hexadecimal digits."""
    return f"kvq-{random_bytes(KEY_BYTES).hex()}"


def secret_manifest(key: str, name: str, namespace: str, entry: str, quota: str | None) -> str:
    """YAML of the Secret, with the lines for a TenantQuota's spec as comments. Raises InvalidNameError."""
    _require(_SUBDOMAIN, 253, name, f"--secret {name!r}: use lower-case letters, digits, '-' and '.'")
    _require(_LABEL, 63, namespace, f"--namespace {namespace!r}: use lower-case letters, digits and '-'")
    _require(_ENTRY, 253, entry, f"--key {entry!r}: use letters, digits, '-', '_' and '.'")
    if quota is not None:
        _require(_SUBDOMAIN, 253, quota, f"--quota {quota!r}: use lower-case letters, digits, '-' and '.'")
    return _MANIFEST.format(
        whose=f"TenantQuota {namespace}/{quota}" if quota else f"TenantQuota in namespace {namespace}",
        type=API_KEY_SECRET_TYPE,
        key=key,
        name=_scalar(name),
        namespace=_scalar(namespace),
        entry=_scalar(entry),
    )


_MANIFEST: Final = """\
# The lines that let clients in with this key, in the spec of the {whose}:
#   identity:
#     apiKeys:
#     - secretRef: {{name: {name}, key: {entry}}}
apiVersion: v1
kind: Secret
type: {type}
metadata:
  name: {name}
  namespace: {namespace}
stringData:
  {entry}: {key}"""


def _scalar(name: str) -> str:
    """The name as YAML reads back as text: quoted where it could be a number, a boolean or null."""
    plain = name[0].isalpha() and name.lower() not in _READ_AS_OTHER
    return name if plain else f'"{name}"'


def _require(pattern: re.Pattern[str], longest: int, name: str, advice: str) -> None:
    if len(name) > longest or pattern.fullmatch(name) is None:
        raise InvalidNameError(f"{advice}, {longest} characters at most; Kubernetes takes no other name")
