"""A refusal as a value: made once, where the decision is made, and carried unchanged to client, counter and status."""

from __future__ import annotations

from typing import Final

from kvquota_sidecar.records import LeafValue
from kvquota_sidecar.refusals.codes import TABLE, Code

MIN_RETRY_AFTER: Final = 1.0  # seconds; Retry-After is whole seconds, and 0 would invite a busy loop
MAX_RETRY_AFTER: Final = 60.0  # seconds; the SDKs of OpenAI ignore a longer one


class Refusal(LeafValue, frozen=True):
    """`retry_after`: seconds between 1 and 60 after which a retry may help; None exactly where no retry can help.

    `param`: the field of the request's body that is to blame, as in OpenAI's error object.
    """

    code: Code
    status: int
    message: str
    retry_after: float | None
    retryable: bool
    param: str | None = None


def refuse(code: Code, message: str = "", *, retry_after: float = MIN_RETRY_AFTER, param: str | None = None) -> Refusal:
    """A refusal by the table; without `message` the table's own. `retry_after` in seconds is clamped, and left out
    where a retry cannot help."""
    entry = TABLE[code]
    wait = min(MAX_RETRY_AFTER, max(MIN_RETRY_AFTER, retry_after)) if entry.retryable else None
    return Refusal(code, entry.status, message or entry.message, wait, entry.retryable, param)
