"""API keys, as Secrets hold them. The pool's own Secret is read by `kvquota_operator.reconcile.manifests`.

Decides which Secrets may hold an API key, and why a key cannot be read. Pure. Invariants:

1. A key is taken only from a Secret of type kvquota.dev/api-key: naming another Secret in a quota never shows its
   content to anybody, nor whether a key is in it.
2. A problem says what to do about it.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kvquota_api.meta import API_KEY_SECRET_TYPE
from kvquota_operator.reconcile.observed import KeyFound, KeyProblem

NOT_FOUND: Final = "APIKeyNotFound"
WRONG_TYPE: Final = "WrongSecretType"
UNREADABLE: Final = "APIKeyUnreadable"


@dataclass(frozen=True, slots=True)
class KeySecret:
    """What is kept of a Secret that a quota names: its type, and its entries only where the type allows it."""

    type: str
    data: Mapping[str, str] = field(repr=False)


def keep_key_secret(body: Mapping[str, Any]) -> KeySecret:
    """A Secret as the API server has it (`data`, in base64), or as a file may have it (`stringData`)."""
    kind = str(body.get("type") or "Opaque")
    if kind != API_KEY_SECRET_TYPE:
        return KeySecret(kind, {})
    plain = {key: binascii.b2a_base64(str(value).encode()).decode() for key, value in _entries(body, "stringData")}
    return KeySecret(kind, {**dict(_entries(body, "data")), **plain})


def read_key(secret: KeySecret | None, name: str, key: str) -> KeyFound | KeyProblem:
    """The API key in one entry; `secret` is None where there is no Secret of that name."""
    if secret is None:
        return KeyProblem(NOT_FOUND, f"Secret {name} does not exist: create it with type {API_KEY_SECRET_TYPE}")
    if secret.type != API_KEY_SECRET_TYPE:
        return KeyProblem(
            WRONG_TYPE,
            f"Secret {name} has type {secret.type}, and keys are only read from type {API_KEY_SECRET_TYPE}:"
            " create a new Secret of that type (the type of a Secret cannot be changed)",
        )
    if key not in secret.data:
        return KeyProblem(NOT_FOUND, f"Secret {name} has no key {key}: add it, or name another key in the quota")
    value = _text(secret.data[key])
    if not value:
        return KeyProblem(UNREADABLE, f"key {key} of Secret {name} is empty or no text: write the API key into it")
    return KeyFound(value)


def _entries(body: Mapping[str, Any], part: str) -> list[tuple[str, str]]:
    return list((body.get(part) or {}).items())


def _text(encoded: str) -> str:
    """The value without the line break that `echo` and editors leave at the end; "" where it is no text."""
    try:
        return b64decode(encoded, validate=False).decode().strip()
    except (binascii.Error, UnicodeDecodeError):
        return ""
