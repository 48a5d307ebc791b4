"""Answers on their way out: whole documents, and server-sent events cut into bytes as the framing in force says."""

import json
from typing import Any

from aiohttp import web

from kvquota_fakeengine.misbehaviour import Framing

# Several events in one write, as a busy vLLM produces when its client reads more slowly than it generates.
_COALESCED_EVENTS = 4


def encoded(document: dict[str, Any]) -> str:
    """JSON as vLLM writes it: without spaces, characters as they are."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def json_response(document: dict[str, Any], status: int = 200) -> web.Response:
    """A document as the whole answer."""
    return web.Response(body=encoded(document).encode(), status=status, content_type="application/json")


class EventStream:
    """A started response; `send` and `done` return once the bytes are with the transport."""

    def __init__(self, response: web.StreamResponse, framing: Framing) -> None:
        self._response = response
        self._framing = framing
        self._held: list[bytes] = []

    async def send(self, document: dict[str, Any]) -> None:
        await self._event(encoded(document))

    async def done(self) -> None:
        """Say that the answer is complete, and end the body."""
        await self._event("[DONE]")
        await self.flush()
        await self._response.write_eof()

    async def flush(self) -> None:
        held, self._held = b"".join(self._held), []
        if held:
            await self._response.write(held)

    async def _event(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        if self._framing is Framing.BYTES:
            for byte in event:
                await self._response.write(bytes((byte,)))
            return
        self._held.append(event)
        if self._framing is Framing.EVENTS or len(self._held) >= _COALESCED_EVENTS:
            await self.flush()
