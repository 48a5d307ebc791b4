"""One request that the engine works on, being answered, with whatever is to go wrong on the way."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from kvquota_fakeengine import wire
from kvquota_fakeengine.answers import Answer
from kvquota_fakeengine.engine import FakeEngine, Generation
from kvquota_fakeengine.misbehaviour import Faults, Misbehaviour
from kvquota_fakeengine.output import EventStream, json_response
from kvquota_fakeengine.requests import GenerateRequest, Refused
from kvquota_fakeengine.wire import Dialect, Document, Envelope, TokenCounts


@dataclass(frozen=True, slots=True)
class Answering:
    """`whole` answers in one document, `stream` in server-sent events. If the client goes, both are cancelled."""

    request: web.Request
    engine: FakeEngine
    faults: Faults
    asked: GenerateRequest
    dialect: Dialect
    envelope: Envelope
    generation: Generation

    async def whole(self) -> web.Response:
        answer = self._answer()
        await self._hang_while(lambda current: current.hang_before_first_byte)
        async for index, emission in self.generation.emissions():
            await self._go_wrong(answer)
            answer.take(index, emission)
        return json_response(self.dialect.whole(self.envelope, answer.pieces(), answer.whole_counts()))

    async def stream(self) -> web.StreamResponse:
        answer = self._answer()
        await self._hang_while(lambda current: current.hang_before_first_byte)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        # As vLLM does: the head is sent as soon as the request is accepted, the first token may be far away.
        await response.prepare(self.request)
        events = EventStream(response, self.faults.current.framing)
        try:
            await self._send_pieces(answer, events)
        except Refused as failure:
            await events.send(wire.refusal(failure))
        await events.done()
        return response

    async def _send_pieces(self, answer: Answer, events: EventStream) -> None:
        opened = False
        async for index, emission in self.generation.emissions():
            if not opened:
                opened = True
                await self._open(answer, events)
            await self._go_wrong(answer, events)
            piece = answer.take(index, emission)
            if piece is not None:
                chunk = self.dialect.chunk(self.envelope, piece)
                ended = piece.finish is not None
                await events.send(self._with_running_usage(chunk, answer.counts_of(index), last=ended))
        counts = answer.stream_counts()
        if self.asked.include_usage and counts is not None:
            await events.send(self.dialect.final_chunk(self.envelope, counts))

    async def _open(self, answer: Answer, events: EventStream) -> None:
        for chunk in self.dialect.opening(self.envelope, self.asked.choices):
            await events.send(self._with_running_usage(chunk, answer.opening_counts(), last=False))

    def _answer(self) -> Answer:
        current = self.faults.current
        return Answer(self.asked, self.engine.settings, current.tokens_per_frame, current.usage)

    def _with_running_usage(self, chunk: Document, counts: TokenCounts | None, *, last: bool) -> Document:
        if last and not self.asked.include_usage:
            chunk |= {"system_fingerprint": wire.FINGERPRINT}
        if self.asked.continuous_usage and counts is not None:
            chunk |= {"usage": self.dialect.running_usage(counts)}
        return chunk

    async def _go_wrong(self, answer: Answer, events: EventStream | None = None) -> None:
        """Before the next token: hang, cut the connection or fail, if that is due at this length."""
        current, length = self.faults.current, answer.longest
        if events is not None and _due(current.hang_after_tokens, length):
            await events.flush()
        await self._hang_while(lambda now: _due(now.hang_after_tokens, length))
        if _due(current.cut_after_tokens, length):
            await self._cut(events)
        if _due(current.fail_after_tokens, length):
            raise Refused(500, "Internal server error", "InternalServerError")

    async def _hang_while(self, wrong: Callable[[Misbehaviour], bool]) -> None:
        if wrong(self.faults.current):
            self.engine.stall(self.generation, stalled=True)
            await self.faults.wait_while(wrong)
            self.engine.stall(self.generation, stalled=False)

    async def _cut(self, events: EventStream | None) -> None:
        """Close the connection in the middle; the loss of it cancels this request."""
        if events is not None:
            await events.flush()
        if self.request.transport is not None:
            self.request.transport.close()
        await asyncio.Event().wait()


def _due(after: int | None, length: int) -> bool:
    return after is not None and length >= after
