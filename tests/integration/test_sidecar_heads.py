"""HEAD: the head that GET would have, and no body, whoever answers."""

import pytest

from raw_client import RawClient
from sidecar_rig import KEYS, SEARCH, TOKEN, both_ends, get, on_both_loops

BEARER = f"Authorization: Bearer {KEYS[SEARCH]}"


def as_head(request: bytes) -> bytes:
    return request.replace(b"GET ", b"HEAD ", 1)


async def head_of(client: RawClient, request: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers; what follows the head is left on the connection."""
    client.send(request)
    lines = (await client.line(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    return int(lines[0].split(" ")[1]), headers


OWN = {
    "its own usage": get("/v1/usage", BEARER),
    "a stranger's": get("/v1/models", "Authorization: Bearer nobody"),
    "a route that is not allowed": get("/metrics"),
}


@pytest.mark.parametrize("request_bytes", OWN.values(), ids=OWN)
@on_both_loops
async def test_what_the_sidecar_answers_itself_has_no_body_and_the_connection_stays_in_step(
    request_bytes: bytes,
) -> None:
    async with both_ends() as (running, _), await running.connect() as client:
        whole = await client.ask(request_bytes)
        status, headers = await head_of(client, as_head(request_bytes))
        assert (status, headers["content-length"]) == (whole.status, str(len(whole.body)))
        again = await client.ask(request_bytes)
    assert (again.status, again.body) == (whole.status, whole.body)


@on_both_loops
async def test_a_refused_body_of_head_gets_a_head_and_an_end() -> None:
    request = b"HEAD /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc"
    async with both_ends() as (running, _), await running.connect() as client:
        status, headers = await head_of(client, request)
        assert (status, int(headers["content-length"]) > 0, headers["connection"]) == (404, True, "close")
        assert await client.eof() == b""


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
@on_both_loops
async def test_what_the_engine_answers_has_no_body(path: str) -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        for _ in range(2):
            client.send(as_head(get(path, BEARER)))
            upstream = await engine.next()
            assert upstream.head.startswith(f"GET {path} HTTP/1.1\r\n".encode())  # engines know no HEAD
            upstream.answer(b'{"data":[]}', "X-Engine: yes")
            lines = (await client.line(b"\r\n\r\n")).lower()
            assert b"content-length: 11\r\n" in lines
            assert b"x-engine: yes\r\n" in lines
        assert engine.accepted == 1


@on_both_loops
async def test_an_answer_of_the_engine_without_a_length_has_no_body_and_no_framing() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(as_head(get("/health")))
        upstream = await engine.next()
        upstream.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        upstream.done()
        lines = (await client.line(b"\r\n\r\n")).lower()
        assert b"transfer-encoding" not in lines
        assert b"connection: close" not in lines
        assert (await client.ask(get("/v1/usage", BEARER))).status == 200


@on_both_loops
async def test_the_engines_failure_has_no_body() -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        await engine.stop()
        status, headers = await head_of(client, as_head(get("/health")))
        assert (status, int(headers["content-length"]) > 0) == (502, True)
        assert (await client.ask(get("/v1/usage", BEARER))).status == 200


@on_both_loops
async def test_probes_of_the_admin_port_may_be_heads_and_the_drain_may_not() -> None:
    async with both_ends() as (running, _), await running.connect_admin() as client:
        for path, expected in {"/healthz": 200, "/metrics": 200, "/drain": 404, "/drain/wait": 404}.items():
            status, headers = await head_of(client, as_head(get(path, f"Authorization: Bearer {TOKEN}")))
            assert (status, int(headers["content-length"]) > 0) == (expected, True)
        assert running.events("draining") == []
        assert (await client.ask(get("/healthz"))).status == 200
