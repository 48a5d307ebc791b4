"""What the supervisor leaves to the child that serves: see `kvquota_sidecar.supervisor`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from kvquota_api import pod_config
from kvquota_api.usage import Source
from kvquota_sidecar.channel.adoption import Documents
from kvquota_sidecar.clock import Clock
from kvquota_sidecar.listening import Listeners
from kvquota_sidecar.supervisor import SUPERVISED

Offer = Callable[[bytes, Source], None]
BEAT_SECONDS: Final = 0.5  # between two signs of life


@dataclass(frozen=True, slots=True)
class Inheritance:
    """`beat`: descriptor to write signs of life to. `life`: one that ends when the supervisor is gone. `kept`: one of
    memory that outlives a child. `restarts`: children before this one, by what had become of them."""

    listeners: Listeners
    beat: int
    life: int
    kept: int
    restarts: Mapping[str, int]


def inheritance(environ: Mapping[str, str]) -> Inheritance | None:
    """What this process inherits; None where it is nobody's child. To be called once: the sockets are opened."""
    if SUPERVISED not in environ:
        return None
    given = json.loads(environ[SUPERVISED])
    return Inheritance(Listeners.inherited(given), given["beat"], given["life"], given["kept"], given["restarts"])


class _Documents(msgspec.Struct, frozen=True):
    """As they came; empty where there is none."""

    config: bytes = b""
    identity: bytes = b""
    source: Source = "None"


class Keepsake:
    """Config and identity in force, for the next child: the channel may be away when it starts."""

    def __init__(self, descriptor: int | None) -> None:
        """`descriptor`: of `Inheritance.kept`; None: there is no next child."""
        self._descriptor = descriptor

    def keep(self, documents: Documents) -> None:
        """Leave these in place of those before."""
        if self._descriptor is None:
            return
        found = (documents.config, documents.identity)
        config, identity = (b"" if each is None else pod_config.encode(each) for each in found)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, msgspec.msgpack.encode(_Documents(config, identity, documents.source)), 0)

    def offer(self, identity: Offer, config: Offer) -> None:
        """Offer what the child before has left: nothing where it left none, or was killed while it wrote."""
        left = self._left()
        if left.identity:
            identity(left.identity, left.source)
        if left.config:
            config(left.config, left.source)

    def _left(self) -> _Documents:
        if self._descriptor is None:
            return _Documents()
        data = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        try:
            return msgspec.msgpack.decode(data, type=_Documents)
        except msgspec.MsgspecError:
            return _Documents()


class Heart:
    """Tells the supervisor that the loop turns, when somebody on the loop asks it to."""

    def __init__(self, descriptor: int, clock: Clock) -> None:
        self._descriptor = descriptor
        self._clock = clock
        self._next_at = 0.0

    def beat(self) -> None:
        """Give a sign of life, unless there was one lately. A supervisor that does not read it has others to read."""
        if self._clock() < self._next_at:
            return
        self._next_at = self._clock() + BEAT_SECONDS
        with suppress(OSError):
            os.write(self._descriptor, b".")
