"""One look at an engine over a real connection: which dialect, and what engines answer instead of metrics."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from kvquota_api.amounts import Blocks, Tokens
from kvquota_sidecar.engines.fetching import EngineUnavailableError
from kvquota_sidecar.engines.llamacpp import REST_SECONDS
from kvquota_sidecar.engines.sampling import MAX_METRICS_BYTES, MetricsSampler
from kvquota_sidecar.ledger.asking import EngineSample
from kvquota_sidecar.proxy.engine_side import EngineAddress, EnginePool

VLLM = b'vllm:num_requests_running{engine="0"} 3\nprocess_start_time_seconds 7\n'
SGLANG = b"sglang:num_running_reqs 2\nsglang:num_used_tokens 33\nsglang:prompt_tokens_total 9\n"
LLAMACPP = b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n"
SLOTS = b'[{"is_processing":true,"n_ctx":512,"n_prompt_tokens":40}]'
WALL = 5000.0


def page(body: bytes, *headers: str, status: int = 200) -> bytes:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@dataclass(slots=True)
class Pages:
    """A server that answers each path with fixed bytes, and everything else with 404."""

    answers: dict[str, bytes]
    asked: list[str] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    wall: float = WALL  # what the clock beside it shows

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        await self.serve(reader, writer)

    async def close(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                self.asked.append(head.split(b" ")[1].decode())
                writer.write(self.answers.get(self.asked[-1], page(b"", status=404)))
                await writer.drain()


@asynccontextmanager
async def sampling(pages: Pages, engine_type: str | None = None) -> AsyncIterator[MetricsSampler]:
    """A sampler of a server with these pages."""
    server = await asyncio.start_server(pages.connected, "127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    host, port = server.sockets[0].getsockname()
    async with server:
        pool = EnginePool(EngineAddress(host, port), loop.create_task, loop.time)
        try:
            yield MetricsSampler(pool, lambda: engine_type, lambda: pages.wall)
        finally:
            pool.close()
            await pages.close()


async def sampled(engine_type: str | None = None, **answers: bytes) -> EngineSample | None:
    """One look at a server with these pages."""
    async with sampling(Pages({f"/{path}": answer for path, answer in answers.items()}), engine_type) as sampler:
        return await sampler.sample()


# Which dialect


SAID = EngineSample(running=3, started_at=7.0)
OF_SLOTS = EngineSample(
    blocks=Blocks(512), block_tokens=Tokens(1), used_blocks=Blocks(40), running=1, waiting=0, started_at=None
)


@pytest.mark.parametrize("engine_type", [None, "OpenAI", "TensorRTLLM", "vLLM"])
async def test_metrics_of_vllm_are_read_whatever_the_type_unless_it_has_another_dialect(engine_type: str) -> None:
    assert await sampled(engine_type, metrics=page(VLLM)) == SAID


@pytest.mark.parametrize("engine_type", [None, "OpenAI", "LlamaCpp"])
async def test_llamacpp_is_asked_for_its_slots_too(engine_type: str | None) -> None:
    assert await sampled(engine_type, metrics=page(LLAMACPP), slots=page(SLOTS)) == OF_SLOTS


async def test_llamacpp_without_metrics_has_slots() -> None:
    expected = EngineSample(blocks=Blocks(512), block_tokens=Tokens(1), used_blocks=Blocks(40), running=1)
    assert await sampled("LlamaCpp", metrics=page(b"{}", status=501), slots=page(SLOTS)) == expected


async def test_llamacpp_with_another_start_header_has_started_again() -> None:
    pages = Pages({"/metrics": page(LLAMACPP, "Process-Start-Time-Unix: 814")})
    async with sampling(pages) as sampler:
        first = await sampler.sample()
        pages.answers["/metrics"] = page(LLAMACPP, "Process-Start-Time-Unix: 77")
        pages.wall += 9
        second = await sampler.sample()
    assert first is not None
    assert second is not None
    assert (first.started_at, second.started_at) == (WALL, WALL + 9)


@pytest.mark.parametrize("engine_type", [None, "SGLang"])
async def test_sglang_is_asked_once_for_what_its_metrics_leave_out(engine_type: str | None) -> None:
    pages = Pages({"/metrics": page(SGLANG), "/get_server_info": page(b'{"page_size":16,"max_total_num_tokens":1600}')})
    async with sampling(pages, engine_type) as sampler:
        for _ in range(3):
            assert await sampler.sample() == EngineSample(
                blocks=Blocks(100), block_tokens=Tokens(16), used_blocks=Blocks(3), running=2, started_at=WALL
            )
    assert pages.asked == ["/metrics", "/get_server_info", "/metrics", "/metrics"]


async def test_sglang_that_has_started_again_is_asked_again() -> None:
    pages = Pages({"/metrics": page(SGLANG), "/get_server_info": page(b'{"page_size":16}')})
    async with sampling(pages) as sampler:
        await sampler.sample()
        pages.answers["/metrics"] = page(SGLANG.replace(b" 9\n", b" 1\n"))
        pages.wall += 9
        await sampler.sample()
    assert pages.asked == ["/metrics", "/get_server_info"] * 2


async def test_sglang_that_tells_all_in_its_metrics_is_not_asked() -> None:
    pages = Pages({"/metrics": page(SGLANG + b"sglang:page_size 16\nsglang:max_total_num_tokens 1600\n")})
    async with sampling(pages) as sampler:
        assert await sampler.sample() is not None
    assert pages.asked == ["/metrics"]


@pytest.mark.parametrize("said", ["SGLang", "LlamaCpp"])
async def test_metrics_of_another_engine_than_the_config_says_are_not_read(said: str) -> None:
    assert await sampled(said, metrics=page(VLLM)) is None


@pytest.mark.parametrize("status", [404, 401, 500])
async def test_an_engine_without_metrics_says_nothing(status: int) -> None:
    assert await sampled(metrics=page(VLLM, status=status)) is None


# What comes instead


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(VLLM, mtime=0)),
        ("x-gzip", gzip.compress(VLLM, mtime=0)),
        ("GZIP", gzip.compress(VLLM, mtime=0)),
        ("deflate", zlib.compress(VLLM)),
        ("identity", VLLM),
    ],
    ids=["gzip", "x-gzip", "in capitals", "deflate", "identity"],
)
async def test_an_answer_that_was_compressed_unasked_is_read(coding: str, body: bytes) -> None:
    assert await sampled(metrics=page(body, f"Content-Encoding: {coding}")) == SAID


async def test_it_asks_for_an_answer_as_it_is() -> None:
    pages = Pages({"/metrics": page(VLLM)})
    async with sampling(pages) as sampler:
        await sampler.sample()
    assert b"\r\naccept-encoding: identity\r\n" in pages.heads[0]


BOMB = gzip.compress(b"a" * (MAX_METRICS_BYTES + 1), mtime=0)
FAILURES: dict[str, tuple[bytes, str]] = {
    "more than is read": (page(b"a" * (MAX_METRICS_BYTES + 1)), f"the answer is over {MAX_METRICS_BYTES} bytes"),
    "a bomb": (
        page(BOMB, "Content-Encoding: gzip"),
        f"the answer is cut short, or over {MAX_METRICS_BYTES} bytes when it is unpacked",
    ),
    "gzip that breaks off": (
        page(gzip.compress(VLLM, mtime=0)[:-9], "Content-Encoding: gzip"),
        f"the answer is cut short, or over {MAX_METRICS_BYTES} bytes when it is unpacked",
    ),
    "gzip that is none": (page(VLLM, "Content-Encoding: gzip"), "the answer is no gzip: "),
    "a coding that nobody asked for": (page(VLLM, "Content-Encoding: br"), "the answer is compressed as br"),
    "bytes that are no HTTP": (b"\x00\x01\x02\x03\r\n\r\n", ""),
}


@pytest.mark.parametrize(("answer", "says"), FAILURES.values(), ids=FAILURES)
async def test_an_answer_that_is_none_is_said_so(answer: bytes, says: str) -> None:
    with pytest.raises(EngineUnavailableError) as failure:
        await sampled(metrics=answer)
    assert str(failure.value).startswith(says)


async def test_an_answer_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvquota_sidecar.engines.sampling.SAMPLE_SECONDS", 0.05)
    with pytest.raises(EngineUnavailableError, match=r"^/metrics: no answer within 0\.05 s$"):
        await sampled(metrics=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nvllm:\r\n")


@dataclass(slots=True)
class Fountain(Pages):
    """A server whose answer never ends."""

    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(b"10000\r\n" + b"a" * 0x10000 + b"\r\n")
                await writer.drain()
        self.closed.set()


async def test_an_answer_that_grows_for_ever_is_cut_at_its_bound() -> None:
    fountain = Fountain({})
    async with sampling(fountain) as sampler:
        with pytest.raises(EngineUnavailableError, match=f"over {MAX_METRICS_BYTES} bytes"):
            await sampler.sample()
        async with asyncio.timeout(5):
            await fountain.closed.wait()


@pytest.mark.parametrize(
    ("metrics", "seconds"),
    [(LLAMACPP, REST_SECONDS), (VLLM, 0.0), (SGLANG, 0.0)],
    ids=["llama.cpp", "vLLM", "SGLang"],
)
async def test_only_llamacpp_is_left_alone_after_a_look(metrics: bytes, seconds: float) -> None:
    async with sampling(Pages({"/metrics": page(metrics), "/slots": page(SLOTS)})) as sampler:
        assert sampler.rest_seconds == 0.0
        await sampler.sample()
        assert sampler.rest_seconds == seconds


@pytest.mark.parametrize("garbage", [b"\xff\xfe\x00" * 999, b"", b"<html></html>", b"vllm:"])
async def test_an_answer_of_garbage_says_nothing(garbage: bytes) -> None:
    assert await sampled(metrics=page(garbage)) is None
