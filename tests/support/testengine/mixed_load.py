"""The load of several tenants: chats, completions, batches, token ids and messages, and clients that leave."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from typing import Any

from raw_client import RawClient
from sidecar_rig import post

AFTER_REFUSAL_SECONDS = 0.25  # else refusals, which take no time, are nearly all there is
PATIENCE_SECONDS = 60.0  # for an answer that takes a tenth of a second on an idle machine
TEXT = "the quick brown fox jumps over a lazy dog while seven boxing wizards pack five dozen jugs and nobody asks why"
WORDS = TEXT.split()


@cache
def prefix(tenant: str) -> str:
    """What half of a tenant's texts begin with."""
    return " ".join(random.Random(tenant).choices(WORDS, k=100))


def some_text(dice: random.Random, tenant: str) -> str:
    """Half of all texts begin as their tenant's others do."""
    own = " ".join(dice.choices(WORDS, k=dice.randint(3, 40)))
    return f"{prefix(tenant)} {own}" if dice.random() < 0.5 else own


def a_chat(dice: random.Random, tenant: str) -> tuple[str, dict[str, Any]]:
    told = [{"role": "system", "content": prefix(tenant)}] if dice.random() < 0.5 else []
    messages = [*told, {"role": "user", "content": some_text(dice, tenant)}]
    return "/v1/chat/completions", {"messages": messages, "n": dice.choice((1, 1, 2))}


def a_completion(dice: random.Random, tenant: str) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": some_text(dice, tenant), "n": dice.choice((1, 1, 3))}


def a_batch(dice: random.Random, tenant: str) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": [some_text(dice, tenant) for _ in range(dice.randint(2, 4))]}


def token_ids(dice: random.Random, tenant: str) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": dice.choices(range(300, 700), k=dice.randint(1, 200))}


def a_message(dice: random.Random, tenant: str) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"messages": [{"role": "user", "content": some_text(dice, tenant)}]}


KINDS = (a_chat, a_chat, a_chat, a_completion, a_batch, token_ids, a_message)


@dataclass(slots=True, kw_only=True)
class Load:
    """`requests` in all, of `tenants` at random; `leaving`: the share of clients that go within a fifth of a second.

    `statuses`: what became of them, `left`: clients that did not wait for their answers.
    """

    connect: Callable[[], Awaitable[RawClient]]
    tenants: Sequence[str]
    requests: int
    leaving: float = 0.0
    longest: int = 8  # tokens of output
    dice: random.Random = field(default_factory=lambda: random.Random(4))
    statuses: Counter[int] = field(default_factory=Counter)
    left: int = 0
    sent: int = 0

    async def run(self, clients: int) -> None:
        """Send all of them, as many at a time."""
        async with asyncio.TaskGroup() as all_:
            for _ in range(clients):
                all_.create_task(self._client())

    async def _client(self) -> None:
        while self.sent < self.requests:
            self.sent += 1
            tenant = self.dice.choice(self.tenants)
            path, body = self.dice.choice(KINDS)(self.dice, tenant)
            output = self.dice.randint(1, self.longest)
            body |= {"model": "tiny", "max_tokens": output, "stream": self.dice.random() < 0.5}
            leaves_after = self.dice.random() * 0.2 if self.dice.random() < self.leaving else None
            async with await self.connect() as client:
                client.send(post(json.dumps(body).encode(), path, tenant))
                await self._answered(client, leaves_after)

    async def _answered(self, client: RawClient, leaves_after: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(leaves_after or PATIENCE_SECONDS):
                got = await client.answer()
                assert got.complete
                self.statuses[got.status] += 1
                if got.status == HTTPStatus.TOO_MANY_REQUESTS:
                    await asyncio.sleep(AFTER_REFUSAL_SECONDS)
                return
        assert leaves_after is not None, "an answer never came"
        self.left += 1
        client.reset()
