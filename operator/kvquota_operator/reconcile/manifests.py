"""The objects that the operator stores: a ConfigMap per pod, a Secret per pool.

Decides their names, labels and owners, and what is believed of a stored one. Pure: objects are plain dicts.

Invariants:

1. A name depends only on what the object is for, or is what the pod mounts: applying twice is applying once, and no
   two clash.
2. An object goes when its owner goes: the ConfigMap with its pod, the Secret with its pool.
3. What was not written by an operator for that pod or pool is not read: Unreadable with the reason, never an error.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvquota_api.meta import (
    API_VERSION,
    CONFIG_KEY,
    IDENTITY_KEY,
    PEPPER_KEY,
    POOL_LABEL,
    POOL_SECRET_TYPE,
    TOKEN_KEY,
)
from kvquota_api.pod_config import (
    DocumentError,
    PodConfig,
    PodRef,
    PoolIdentity,
    decode_config,
    decode_identity,
    encode,
)
from kvquota_operator.reconcile.observed import PoolKey, SecretSeen
from kvquota_operator.reconcile.plan import SecretWanted

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "kvquota-operator"
CONFIG_MAP_NAME: Final = re.compile(r"kvq-[0-9a-f]{32}")  # 128 bits, made at random or of the pod's uid
MAX_LABEL: Final = 63  # characters of a label's value, by Kubernetes
MAX_NAME: Final = 253  # characters of a name, by Kubernetes
MAX_CONFIG_BYTES: Final = 2**20 - 2**14  # the API server takes 1 MiB of data; the rest is for labels and owners
MAX_IDENTITY_BYTES: Final = MAX_CONFIG_BYTES  # a Secret takes as much as a ConfigMap; the rest is for token and pepper
MINIMUM_SECRET: Final = 32  # characters of token and pepper: 128 bits and more in hexadecimal
_DIGEST: Final = 32  # hexadecimal digits of a digest in a name: 128 bits


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A stored object that is passed over; `reason` is a sentence for the log."""

    reason: str


def is_config_map_name(name: str) -> bool:
    """Whether a ConfigMap that a pod mounts as its config may be the operator's by its name."""
    return CONFIG_MAP_NAME.fullmatch(name) is not None


def config_map_name(namespace: str, pod_uid: str) -> str:
    """The name of the durable copy of the config of a pod that mounts none: a pod does not know its own uid."""
    return f"kvq-{hashlib.sha256(f'{namespace}/{pod_uid}'.encode()).hexdigest()[:_DIGEST]}"


def pool_secret_name(pool: str) -> str:
    """The name of a pool's Secret; a pool's name that is too long for it is digested."""
    name = f"kvquota-{pool}"
    return name if len(name) <= MAX_NAME else f"kvquota-{_digest(pool)}"


def pool_label(pool: str) -> str:
    """The value of the label kvquota.dev/pool; a name that is too long for a label is digested."""
    return pool if len(pool) <= MAX_LABEL else _digest(pool)


def config_map(config: PodConfig, name: str | None = None) -> dict[str, Any]:
    """The durable copy of one pod's config. `name`: of the ConfigMap that the pod mounts, if it mounts one."""
    pod = config.pod
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name or config_map_name(pod.namespace, pod.uid),
            "namespace": pod.namespace,
            "labels": _labels(config.pool.name),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}],
        },
        "data": {CONFIG_KEY: encode(config).decode()},
    }


def config_from_configmap(stored: Mapping[str, Any]) -> PodConfig | Unreadable:
    """The config in a stored ConfigMap, if it is the one that belongs there."""
    text = _mapping(stored.get("data")).get(CONFIG_KEY)
    if not isinstance(text, str):
        return Unreadable(f"{_named(stored)} has no {CONFIG_KEY}")
    try:
        config = decode_config(text)
    except DocumentError as error:
        return Unreadable(f"{_named(stored)}, {CONFIG_KEY}: {error}")
    if not is_ours(stored, config.pod):
        return Unreadable(f"{_named(stored)} holds the config of another pod, {config.pod.name}")
    return config


def is_ours(stored: Mapping[str, Any], pod: PodRef) -> bool:
    """Whether a stored ConfigMap is one of this pod, by name, namespace and owner: only then it is written over."""
    metadata = _mapping(stored.get("metadata"))
    owners = metadata.get("ownerReferences")
    uids = [_mapping(owner).get("uid") for owner in owners] if isinstance(owners, list) else []
    named = is_config_map_name(str(metadata.get("name")))
    return named and metadata.get("namespace") == pod.namespace and uids == [pod.uid]


def pool_secret(pool: PoolKey, pool_uid: str, wanted: SecretWanted) -> dict[str, Any]:
    """The Secret of a pool: what its sidecars show and ask for, and who its clients are."""
    values = {
        TOKEN_KEY: wanted.token.encode(),
        PEPPER_KEY: wanted.pepper.encode(),
        IDENTITY_KEY: encode(wanted.identity),
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": POOL_SECRET_TYPE,
        "metadata": {
            "name": pool_secret_name(pool.name),
            "namespace": pool.namespace,
            "labels": _labels(pool.name),
            "ownerReferences": [
                {"apiVersion": API_VERSION, "kind": "ModelPool", "name": pool.name, "uid": pool_uid},
            ],
        },
        "data": secret_data(values),
    }


def secret_data(values: Mapping[str, bytes]) -> dict[str, str]:
    """The data of a Secret."""
    return {key: base64.b64encode(value).decode() for key, value in values.items()}


def decoded(value: object) -> bytes:
    """A value in the data of a Secret; empty where there is none that can be read."""
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except ValueError:  # also of text that is not ASCII
        return b""


def secret_from(stored: Mapping[str, Any]) -> SecretSeen | Unreadable:
    """Token, pepper and identity of a stored Secret; an identity that cannot be read is None: it is made anew."""
    if stored.get("type") != POOL_SECRET_TYPE:
        return Unreadable(f"{_named(stored)} is not of the type {POOL_SECRET_TYPE}")
    data = _mapping(stored.get("data"))
    token, pepper = (_text(data.get(key)) for key in (TOKEN_KEY, PEPPER_KEY))
    if token is None or pepper is None or min(len(token), len(pepper)) < MINIMUM_SECRET:
        return Unreadable(f"{_named(stored)} lacks {TOKEN_KEY} or {PEPPER_KEY} of at least {MINIMUM_SECRET} characters")
    return SecretSeen(token, pepper, _identity(_text(data.get(IDENTITY_KEY))))


def _identity(text: str | None) -> PoolIdentity | None:
    if text is None:
        return None
    try:
        return decode_identity(text)
    except DocumentError:
        return None


def _text(value: object) -> str | None:
    try:
        return decoded(value).decode() or None
    except UnicodeDecodeError:
        return None


def _labels(pool: str) -> dict[str, str]:
    return {POOL_LABEL: pool_label(pool), MANAGED_BY_LABEL: MANAGED_BY}


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _named(stored: Mapping[str, Any]) -> str:
    metadata = _mapping(stored.get("metadata"))
    return f"{stored.get('kind', 'object')} {metadata.get('namespace')}/{metadata.get('name')}"
