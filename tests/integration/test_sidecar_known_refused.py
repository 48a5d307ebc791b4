"""What a known tenant is told of its room, and is counted for, when its request cannot be taken."""

import pytest

from kvquota_sidecar.proxy.hub import Patience
from sidecar_rig import KEYS, SEARCH, both_ends, get, on_both_loops

WHO = f"Authorization: Bearer {KEYS[SEARCH]}"
CHUNKED = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\n{WHO}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
NOWHERE = f"POST /nowhere HTTP/1.1\r\nHost: a\r\n{WHO}\r\nContent-Length: 0\r\n\r\n".encode()
PLAIN = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\n{WHO}\r\n"
LONG = f"X-A: {'y' * 40_000}\r\n"


def headed(*lines: str) -> bytes:
    return (PLAIN + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode()


ROOM = {"ratelimit", "ratelimit-policy", "x-kvquota-used-tokens", "x-kvquota-hard-tokens", "x-kvquota-rung"}


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        pytest.param(CHUNKED + b"zz\r\n", "malformed_request", id="a chunk that is none"),
        pytest.param(CHUNKED + b"100000\r\n", "request_too_large", id="too many chunks"),
        pytest.param(CHUNKED, "request_timeout", id="a body that does not come"),
        pytest.param(NOWHERE, "route_not_allowed", id="no such route"),
        pytest.param(headed("Content-Length: 65537"), "request_too_large", id="a length beyond the limit"),
        pytest.param(
            headed("Content-Encoding: gzip", "Content-Length: 4"), "unsupported_encoding", id="a body in another coding"
        ),
        pytest.param(headed("Expect: 200-ok", "Content-Length: 4"), "expectation_failed", id="an expectation"),
        pytest.param(headed(LONG), "headers_too_large", id="a header that is too long"),
        pytest.param((PLAIN + LONG).encode()[:-2], "headers_too_large", id="one that has no end"),
        pytest.param(headed(*[f"X-{at}: y" for at in range(200)]), "headers_too_large", id="too many headers"),
    ],
)
@on_both_loops
async def test_a_known_tenant_is_told_its_room_and_counted(request_bytes: bytes, code: str) -> None:
    patience = Patience(max_body_bytes=64 * 1024, body=0.2)
    async with both_ends(patience=patience) as (running, _engine), await running.connect() as client:
        client.send(request_bytes)
        answer = await client.answer()
        assert answer.code == code
        assert answer.headers.keys() >= ROOM
        (mine,) = [each for each in running.report().tenants if each.id == SEARCH]
        assert mine.total.rejected == {code: 1}
        assert mine.last_refusal is not None
        assert mine.last_refusal.code == code


@on_both_loops
async def test_nobody_is_told_of_room_on_a_route_that_there_is_not() -> None:
    async with both_ends() as (running, _engine), await running.connect() as client:
        client.send(get("/nowhere"))
        answer = await client.answer()
        assert (answer.status, ROOM & answer.headers.keys()) == (404, set())
        assert [each.total.rejected for each in running.report().tenants] == [{}, {}]


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param((PLAIN.replace(WHO, LONG + WHO)).encode() + b"\r\n", id="who it is stands beyond the limit"),
        pytest.param(headed("Authorization: Bearer another", LONG), id="who it is is in doubt"),
        pytest.param(headed("Content-Length: 4", "Content-Length: 4"), id="a body without one length"),
        pytest.param(headed("Host: b", "Content-Encoding: gzip"), id="two hosts"),
    ],
)
@on_both_loops
async def test_nobody_is_told_of_room_where_the_head_does_not_say_who_it_is(request_bytes: bytes) -> None:
    async with both_ends() as (running, _engine), await running.connect() as client:
        client.send(request_bytes)
        answer = await client.answer()
        assert (answer.status >= 400, ROOM & answer.headers.keys()) == (True, set())
        assert [each.total.rejected for each in running.report().tenants] == [{}, {}]
