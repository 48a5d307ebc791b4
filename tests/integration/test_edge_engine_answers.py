"""Answers of an engine on the edge of HTTP/1.1: cut at every byte the client gets the same, and never a part of it that
looks like the whole."""

import asyncio
from dataclasses import dataclass

import pytest

from kvquota_sidecar.proxy.engine_side import EngineLink
from raw_client import Got, RawClient, Reads, every_cut
from raw_engine import RawEngine, frame
from sidecar_rig import SEARCH, Running, both_ends, chat, config, on_the_programs_loop, post, share

OK = b"HTTP/1.1 200 OK\r\n"
JSON = b"Content-Type: application/json\r\n"
EVENTS = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;x=y\r\n}\r\n0\r\nX-Trailer: z\r\n\r\n"
STREAM = frame("a") + frame("b") + b"data: [DONE]\n\n"
# What ended a moment ago counts as held for a while, so hundreds of requests in a second need room.
ROOMY = config(share(SEARCH, soft=20_000, hard=60_000), blocks=65_536)
# What changes from answer to answer.
PASSING = {"date", "x-request-id", "retry-after", "retry-after-ms", "ratelimit", "x-kvquota-used-tokens"}


@dataclass(frozen=True, slots=True)
class Engine:
    """A sidecar, an engine whose answers it reads as they are cut, and a client."""

    running: Running
    engine: RawEngine
    reads: Reads

    async def answers(self, parts: list[bytes]) -> Got:
        """What the client gets of an answer in these parts."""
        async with await self.running.connect() as client:
            return await self._answers(client, parts)

    async def _answers(self, client: RawClient, parts: list[bytes]) -> Got:
        client.send(post(chat(stream=True)))
        upstream = await self.engine.next()
        port = upstream.writer.get_extra_info("peername")[1]
        got = asyncio.ensure_future(client.answer())
        read = self.reads[port]
        for part in parts:
            if upstream.writer.is_closing():
                break  # it has read enough
            upstream.send(part)
            read += len(part)
            await self.reads.reach(port, read, got.done)
        upstream.done()
        return await got


async def said(data: bytes, monkeypatch: pytest.MonkeyPatch) -> Got:
    """What the client gets of `data`, the same however it is cut."""
    reads = Reads()
    reads.watch(EngineLink, "sockname", monkeypatch)
    async with both_ends(wanted=ROOMY) as (running, engine):
        it = Engine(running, engine, reads)
        first, *others = [_lasting(await it.answers(parts)) for parts in every_cut(data)]
        await running.idle()
    assert [each for each in others if each != first] == []
    return first


def _lasting(got: Got) -> Got:
    """Of two faults in one answer either may be named."""
    headers = {name: value for name, value in got.headers.items() if name not in PASSING}
    if got.status != 200:
        headers.pop("content-length")
        return Got(got.status, headers, got.json()["error"]["code"].encode())
    return Got(got.status, headers, got.body)


GOOD = {
    "a length": (OK + JSON + b"Content-Length: 2\r\n\r\n{}", b"{}"),
    "chunks, an extension and a trailer": (OK + JSON + CHUNKED, b"{}"),
    "an interim answer before it": (
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK + JSON + b"Content-Length: 2\r\n\r\n{}",
        b"{}",
    ),
    "a stream in one chunk": (OK + EVENTS + b"%x\r\n%b\r\n0\r\n\r\n" % (len(STREAM), STREAM), STREAM),
    "a stream of small chunks": (
        OK + EVENTS + b"".join(b"1\r\n%b\r\n" % STREAM[at : at + 1] for at in range(len(STREAM))) + b"0\r\n\r\n",
        STREAM,
    ),
    "headers of its own hop and in our name": (
        OK + JSON + b"Connection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nTrailer: X-T\r\nUpgrade: h2c\r\n"
        b"Proxy-Authenticate: Basic\r\nX-Kvquota-Code: forged\r\nRateLimit-Policy: forged\r\nX-Request-Id: forged\r\n"
        b"Content-Length: 2\r\n\r\n{}",
        b"{}",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "body"), GOOD.values(), ids=GOOD)
@on_the_programs_loop
async def test_a_good_answer_is_the_same_however_it_comes(
    data: bytes, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = await said(data, monkeypatch)
    assert (got.status, got.body) == (200, body)
    framing = {"content-length"} if "content-length" in got.headers else {"transfer-encoding"}
    ours = {"ratelimit-policy", *(f"x-kvquota-{name}" for name in OF_THE_ROOM)}
    assert set(got.headers) == {"content-type", *framing, *ours}
    assert "forged" not in str(got.headers)


OF_THE_ROOM = ("soft-tokens", "hard-tokens", "in-flight", "rung")
BAD = {
    "two lengths": OK + JSON + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length and chunks": OK + JSON + b"Content-Length: 2\r\n" + CHUNKED,
    "a bare LF in a header": OK + JSON + b"X: y\nSet-Cookie: z\r\nContent-Length: 2\r\n\r\n{}",
    "a bare CR in a header": OK + JSON + b"X: y\rSet-Cookie: z\r\nContent-Length: 2\r\n\r\n{}",
    "a folded header": OK + JSON + b"X: y\r\n z\r\nContent-Length: 2\r\n\r\n{}",
    "a NUL in a header": OK + JSON + b"X: y\0z\r\nContent-Length: 2\r\n\r\n{}",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n{}",
    "no HTTP": b"SSH-2.0-x\r\n\r\n",
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
@on_the_programs_loop
async def test_a_bad_answer_is_a_502_and_nothing_of_it_is_shown(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    got = await said(data, monkeypatch)
    assert (got.status, got.body) == (502, b"engine_error")
    assert not {"x", "set-cookie", "upgrade"} & set(got.headers)
