"""What a port of the sidecar does with requests, as its connections see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from kvquota_sidecar.proxy.answers import Answer
from kvquota_sidecar.proxy.head import Fault, Head
from kvquota_sidecar.proxy.reading import Request


@dataclass(frozen=True, slots=True)
class Ends:
    """The two addresses of a connection, without their ports; empty on a unix socket."""

    remote: str
    local: str


class Exchange(Protocol):
    """One request being answered. Called by the connection that it answers to."""

    def client_gone(self) -> None:
        """The client closed or lost its connection: nothing can be answered any more."""

    def client_full(self) -> None:
        """The client reads slower than it is sent: send nothing more until `client_ready`."""

    def client_ready(self) -> None:
        """The client has read what it was sent."""


class Client(Protocol):
    """Where an answer goes: whole with `answer`, or in parts with `begin`, `write` and one of `end` and `break_off`."""

    def attach(self, exchange: Exchange) -> None:
        """Let `exchange` know what becomes of the client until the answer is complete."""

    def let_go(self) -> None:
        """The request's body is held no longer by whoever answers it: it counts for its owner until then."""

    def answer(self, answer: Answer) -> None:
        """Send a whole answer."""

    def begin(self, status: int, fields: bytes, length: int | None) -> None:
        """Send a head. `fields`: header lines, as `encode_fields` makes them. `length`: of the body in bytes; None
        where only its end will tell.
        """

    def write(self, data: bytes) -> None:
        """Send a part of the body."""

    def end(self) -> None:
        """The body is complete."""

    def break_off(self) -> None:
        """The body will never be complete: close so that the client cannot take it for whole."""


ContextT = TypeVar("ContextT")


class Service(Protocol[ContextT]):
    """A port's requests. `ContextT` is what a service learns from a head and needs again with the body."""

    @property
    def is_leaving(self) -> bool:
        """Whether connections should be closed after their answer."""

    def examine(self, head: Head, ends: Ends) -> Answer | ContextT:
        """Look at a head before the body is read: an Answer turns it away."""

    def owner(self, context: ContextT) -> str | None:
        """For whom the request's bytes count beside the total; None: for nobody."""

    def serve(self, request: Request, context: ContextT, client: Client) -> None:
        """Answer a request, now or later."""

    def answer_fault(self, fault: Fault, head: Head | None, context: ContextT | None) -> Answer:
        """What to send for a request that cannot be read; `head` where it got that far, else `fault` has its path;
        `context`: what `examine` said of that head."""
