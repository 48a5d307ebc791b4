"""Log lines of the operator: one JSON object on each line, or text for people.

A line has `at` (Unix seconds), `level`, `event` and `message`, and the fields of its event; what is missing has no
value. Events and their fields are names that programs may rely on, messages are for people. What libraries say has the
event `library`, and the library's name as `logger`. No line has a token, a key or the content of a Secret: nothing that
is logged has read one.
"""

from __future__ import annotations

import json
import logging
import sys
from types import TracebackType
from typing import Any, Final, Literal

LogFormat = Literal["json", "text"]
FORMATS: Final[tuple[LogFormat, ...]] = ("json", "text")

_FIELDS: Final = "kvquota_fields"
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

log = logging.getLogger(__name__)


def told(event: str, **fields: str | float | None) -> dict[str, Any]:
    """The `extra` of a log call: the event's name, and its fields; those that are None are left out."""
    given = {name: value for name, value in fields.items() if value is not None}
    return {_FIELDS: {"event": event, **given}}


class JsonLines(logging.Formatter):
    """One JSON object for each record, without a line break in it."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, _FIELDS, {"event": "library", "logger": record.name})
        line = {"at": round(record.created, 3), "level": record.levelname.lower(), **fields}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(form: LogFormat) -> None:
    """Send all log lines of this process to standard error, and what ends it without being caught too."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("kopf").setLevel(logging.WARNING)  # it reports every step of its own
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # it warns that it has a thread of its own
    sys.excepthook = _died


def _died(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log.critical("ended by a bug: %s", kind.__name__, exc_info=(kind, error, trace), extra=told("died"))
