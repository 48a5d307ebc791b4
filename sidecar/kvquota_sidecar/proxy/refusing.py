"""Refusals as answers: the one place where what went wrong becomes what a client is sent. Pure."""

from __future__ import annotations

from typing import Final

from kvquota_sidecar.proxy.answers import Answer
from kvquota_sidecar.proxy.head import Fault
from kvquota_sidecar.proxy.identity import Failure
from kvquota_sidecar.proxy.request_ids import Name
from kvquota_sidecar.refusals import Code, Refusal, refuse
from kvquota_sidecar.refusals.headers import refused_fields
from kvquota_sidecar.refusals.room import Room
from kvquota_sidecar.refusals.wire import body

_FAULTS: Final = {
    400: Code.MALFORMED_REQUEST,
    408: Code.REQUEST_TIMEOUT,
    413: Code.REQUEST_TOO_LARGE,
    415: Code.UNSUPPORTED_ENCODING,
    417: Code.EXPECTATION_FAILED,
    431: Code.HEADERS_TOO_LARGE,
    503: Code.RECEIVING_TOO_MUCH,
}
_FAILURES: Final = {Failure.CONTRADICTION: Code.AMBIGUOUS_IDENTITY, Failure.UNKNOWN: Code.UNKNOWN_TENANT}


def fault_refusal(fault: Fault) -> Refusal:
    """Of a request that cannot be read."""
    return refuse(_FAULTS[fault.status], fault.sentence)


def identity_refusal(failure: Failure, wanted: str = "") -> Refusal:
    """Of a request whose tenant is not known; `wanted`: what the pool says to those whom nobody knows."""
    return refuse(_FAILURES[failure], wanted if failure is Failure.UNKNOWN else "")


def refusal_answer(refusal: Refusal, path: str, name: Name, room: Room | None = None) -> Answer:
    """The whole answer to the request of that name, in the words of the API that `path` belongs to."""
    return Answer(refusal.status, body(refusal, path), refused_fields(refusal, room) + name.field)
