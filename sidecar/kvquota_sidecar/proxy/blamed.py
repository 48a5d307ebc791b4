"""What the log may say of the field of a body that is to blame for a refusal.

Decides which names are no client's words. Pure.

Invariant: what is told is the name of a field that some route knows, or nothing. A client chooses the names in its
body, and what it is told in return may quote them.
"""

from __future__ import annotations

import re
from typing import Final, cast

import msgspec

from kvquota_sidecar.estimate.shape import ROUTES

_BODIES: Final = cast("list[type[msgspec.Struct]]", [route.decoder.type for route in ROUTES.values()])
_READ: Final = {each.encode_name for body in _BODIES for each in msgspec.structs.fields(body)}
FIELDS: Final = frozenset(_READ.union(*(route.unsupported for route in ROUTES.values())))
_TOP: Final = re.compile(r"[^.\[]*")


def blamed(param: str | None) -> str | None:
    """The field of `param` ("messages" of "messages[2].content"), as in a Refusal; None where it is none of ours."""
    top = _TOP.match(param or "")
    return top[0] if top is not None and top[0] in FIELDS else None
