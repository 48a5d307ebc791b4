"""Documents and reports as programs of other versions send them.

tests/data/versions has what 0.1.0 writes, what one would that knows none of the fields with a default, and what a later
version may.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

VERSIONS = Path(__file__).parents[1] / "data" / "versions"
NEW_IN_CONFIG = (
    "config.burst",
    "config.earlier[].requestsPerMinute",
    "config.kv.groups[].sinkTokens",
    "config.kv.offloadBlocks",
    "config.ladder.shed.byTenant",
    "config.tenants[].requestsPerMinute",
)
NEW_IN_IDENTITY = ("identity.jwt.leewaySeconds", "identity.mutualTls")


def written(version: str, name: str) -> bytes:
    return (VERSIONS / version / f"{name}.json").read_bytes()


def raw(version: str, name: str) -> Any:
    return json.loads(written(version, name))


def signed(document: dict[str, Any]) -> bytes:
    """JSON with the digest that a writer would have given it that knows all of it."""
    content = {name: value for name, value in document.items() if name not in ("generation", "digest")}
    digest = hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()
    return msgspec.json.encode({**document, "digest": digest})
