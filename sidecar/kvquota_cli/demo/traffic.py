"""The clients of the demonstration: they send, note what came back, and send again."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from kvquota_cli.demo.scenario import Habit
from kvquota_cli.demo.tally import Act, Refused, Tally

ANSWER_SECONDS: Final = 120.0  # longer than a flooded engine lets anybody wait here
_WORDS: Final = (
    "the",
    "cat",
    "sat",
    "and",
    "ran",
    "out",
    "for",
    "her",
    "new",
    "red",
    "hat",
    "but",
    "one",
    "dog",
    "had",
)


@dataclass(slots=True)
class Crowd:
    """All clients of one tenant. `act` says what is being shown right now."""

    session: aiohttp.ClientSession
    url: str
    key: str
    model: str
    habit: Habit
    act: Callable[[], Act]
    tally: Tally = field(default_factory=Tally)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.habit.clients):
                tasks.create_task(self._client())

    async def _client(self) -> None:
        while True:
            await self._one()
            await asyncio.sleep(self.habit.pause_seconds)

    async def _one(self) -> None:
        act = self.act()
        self.tally.sent += 1
        try:
            told = await self._ask()
        except (aiohttp.ClientError, TimeoutError) as error:
            told = Refused(0, type(error).__name__, str(error) or "no answer")
        except asyncio.CancelledError:
            self.tally.cut += 1
            raise
        if isinstance(told, Refused):
            self.tally.refuse(act, told)
        else:
            self.tally.answer(act, told)

    async def _ask(self) -> float | Refused:
        """Seconds to the first token, once the whole answer is here."""
        start, headers = time.monotonic(), {"Authorization": f"Bearer {self.key}"}
        async with self.session.post(f"{self.url}/v1/chat/completions", json=self._body(), headers=headers) as answer:
            if answer.status != 200:
                return _refused(answer.status, await answer.json())
            first = None
            async for line in answer.content:
                first = first or time.monotonic()
                if line.startswith(b'data: {"error"'):
                    return _refused(answer.status, json.loads(line[6:]))
                if line.startswith(b"data: [DONE]"):
                    return first - start
            return Refused(answer.status, "broken_stream", "the answer ended before it was complete")

    def _body(self) -> dict[str, Any]:
        """No two prompts begin alike, so that none is a hit in the prefix cache of another."""
        words = itertools.islice(itertools.cycle(_WORDS), self.habit.words)
        content = f"{next(self._numbers)} {' '.join(words)}"
        messages = [{"role": "user", "content": content}]
        return {"model": self.model, "messages": messages, "max_tokens": self.habit.output_tokens, "stream": True}


def _refused(status: int, body: Any) -> Refused:
    error: Any = body.get("error") or {}
    return Refused(status, str(error.get("code", "")), str(error.get("message", "")))


def client_session() -> aiohttp.ClientSession:
    """One for all tenants, with a connection for every request."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
