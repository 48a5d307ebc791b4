"""Documents as writers of other versions send them."""

import hashlib
from typing import Any

import msgspec


def signed(document: dict[str, Any]) -> bytes:
    """JSON with the digest that a writer would have given it that knows all of it."""
    content = {name: value for name, value in document.items() if name not in ("generation", "digest")}
    digest = hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()
    return msgspec.json.encode({**document, "digest": digest})
