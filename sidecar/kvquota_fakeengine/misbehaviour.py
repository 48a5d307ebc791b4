"""What an engine can be told to do wrong."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Framing(StrEnum):
    """How the bytes of a stream are cut: an event a write, every byte for itself, or several events together."""

    EVENTS = "events"
    BYTES = "bytes"
    COALESCED = "coalesced"


class Usage(StrEnum):
    """What `usage` says: the truth, nothing, or numbers that nobody counted."""

    RIGHT = "right"
    MISSING = "missing"
    WRONG = "wrong"


class Metrics(StrEnum):
    """What `/metrics` answers."""

    RIGHT = "right"
    MISSING = "missing"  # none of the engine's own families
    RENAMED = "renamed"  # every name starts in another way
    STALE = "stale"  # as it was when this began
    ERROR = "error"  # 500
    HANG = "hang"  # nothing at all


class Tokenizing(StrEnum):
    """What `/tokenize` answers."""

    RIGHT = "right"
    MISSING = "missing"  # 404, as an engine that has no such route
    ERROR = "error"  # 500
    HANG = "hang"  # nothing at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Misbehaviour:
    """Everything off by default. Token counts are those of one answer; a frame is one server-sent event."""

    refuse_connections: bool = False
    hang_before_first_byte: bool = False
    hang_after_tokens: int | None = None
    cut_after_tokens: int | None = None
    fail_after_tokens: int | None = None  # an error event in the stream, then [DONE]
    error_status: int | None = None  # generating routes answer with it
    framing: Framing = Framing.EVENTS
    tokens_per_frame: int = 1
    usage: Usage = Usage.RIGHT
    metrics: Metrics = Metrics.RIGHT
    tokenizing: Tokenizing = Tokenizing.RIGHT
    aborts_lost: bool = False  # a request whose client has gone goes on to its end
    freeing_delay_seconds: float | None = None
    announced_blocks: int | None = None


GOOD = Misbehaviour()


def misbehaviour_from(document: Mapping[str, Any]) -> Misbehaviour:
    """Read what a control request asks for; `ValueError` says which field is wrong and what it takes."""
    unknown = sorted(set(document) - set(_READERS))
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}; an engine can be told: {', '.join(_READERS)}")
    return Misbehaviour(**{name: _READERS[name](name, value) for name, value in document.items()})


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false")
    return value


def _number(name: str, value: Any) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0):
        raise ValueError(f"{name} must be a number from 0 on, or null")
    return value


def _count(name: str, value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError(f"{name} must be a whole number from 0 on, or null")
    return value


def _at_least_one(name: str, value: Any) -> int:
    count = _count(name, value)
    if not count:
        raise ValueError(f"{name} must be a whole number from 1 on")
    return count


def _one_of(kind: type[StrEnum]) -> Callable[[str, Any], StrEnum]:
    def read(name: str, value: Any) -> StrEnum:
        if value not in list(kind):
            raise ValueError(f"{name} must be one of {', '.join(kind)}")
        return kind(value)

    return read


_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "refuse_connections": _switch,
    "hang_before_first_byte": _switch,
    "hang_after_tokens": _count,
    "cut_after_tokens": _count,
    "fail_after_tokens": _count,
    "error_status": _count,
    "framing": _one_of(Framing),
    "tokens_per_frame": _at_least_one,
    "usage": _one_of(Usage),
    "metrics": _one_of(Metrics),
    "tokenizing": _one_of(Tokenizing),
    "aborts_lost": _switch,
    "freeing_delay_seconds": _number,
    "announced_blocks": _count,
}


@dataclass(slots=True)
class Faults:
    """The misbehaviour in force; those who hang because of it learn when it changes."""

    current: Misbehaviour = GOOD
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def set(self, misbehaviour: Misbehaviour) -> None:
        self.current = misbehaviour
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_while(self, wrong: Callable[[Misbehaviour], bool]) -> None:
        """Return once `wrong` no longer holds. There is no time-out: to hang for ever is what was asked for."""
        while wrong(self.current):
            await self._changed.wait()
