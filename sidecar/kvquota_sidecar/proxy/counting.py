"""The engine's tokenizer, asked where an estimate is not enough.

Invariants:

1. `done` is called exactly once, unless the counting is cancelled first: with the tokens of each prompt, or with None
   where the engine did not say them within DEADLINE_SECONDS. Nothing waits here for longer.
2. No text is tokenized in this process: that holds the loop up for as long as it takes.
3. What the engine has counted is remembered, MAX_REMEMBERED counts at most, by a digest; never across tenants, as the
   time of an answer would tell one tenant what another has asked.
4. A counting that ends early closes its connections, so the engine need not go on.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.questions import Question, counted, questions
from kvquota_sidecar.estimate.shape import Engine, Shape
from kvquota_sidecar.proxy.engine_answer import AnswerHead
from kvquota_sidecar.proxy.engine_side import EngineAddress, EngineFailure, Listener

# Docs/accounting.md (prompts). Tokenizing 10,000 tokens takes 15 ms; what takes longer is taken at the worst.
DEADLINE_SECONDS: Final = 0.05
MAX_REMEMBERED: Final = 4096  # counts of 200 bytes each; a client that is refused sends the same prompt again
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024  # of one answer: it lists every token, so 500,000 of them
_OK: Final = 200

Done = Callable[[tuple[Tokens, ...] | None], None]


class Call(Protocol):
    """A request to the engine that is on its way."""

    def cancel(self) -> None:
        """Nobody wants its answer any more."""


class Line(Protocol):
    """The way to the engine: its pool of connections."""

    @property
    def address(self) -> EngineAddress:
        """Where it is."""

    def call(self, request: bytes, listener: Listener) -> Call:
        """Send a request; `listener` hears of it from now on."""


class Tokenizer:
    """The one engine's."""

    def __init__(self, pool: Line) -> None:
        self._pool = pool
        self._remembered: OrderedDict[bytes, Tokens] = OrderedDict()

    def count(self, tenant: str, engine: Engine, route: str, body: bytes, *, shape: Shape, done: Done) -> Counting:
        """Have the prompts of a body counted. `done` may be called before this returns: from memory, or where nobody
        can say."""
        counting = Counting(self, shape, done)
        asked = () if any(each.media for each in shape.prompts) else questions(engine, route, body)
        counting.start([(_digest(tenant, each), each) for each in asked])
        return counting

    # What a counting calls.

    def recall(self, digest: bytes) -> Tokens | None:
        if digest not in self._remembered:
            return None
        self._remembered.move_to_end(digest)
        return self._remembered[digest]

    def remember(self, digest: bytes, tokens: Tokens) -> None:
        self._remembered[digest] = tokens
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)

    def ask(self, question: Question, listener: Asked) -> Call:
        return self._pool.call(_request(question, self._pool.address.authority), listener)


class Counting:
    """The prompts of one request that are being counted."""

    def __init__(self, tokenizer: Tokenizer, shape: Shape, done: Done) -> None:
        self._tokenizer = tokenizer
        self._exact = [each.tokens for each in shape.prompts]
        self._done = done
        self._counts: list[Tokens | None] = []
        self._calls: dict[int, Call] = {}  # those that the engine has not answered yet
        self._timer: asyncio.TimerHandle | None = None

    def start(self, asked: list[tuple[bytes, Question]]) -> None:
        if len(asked) != self._exact.count(None):
            self._finish(None)
            return
        self._counts = [self._tokenizer.recall(digest) for digest, _ in asked]
        for place, (digest, question) in enumerate(asked):
            if self._counts[place] is None:
                listener = Asked(partial(self._told, place, digest))
                self._calls[place] = self._tokenizer.ask(question, listener)
        if self._calls:
            self._timer = asyncio.get_running_loop().call_later(DEADLINE_SECONDS, self._finish, None)
        else:
            self._finish(self._answer())

    def cancel(self) -> None:
        """Nobody wants to know any more."""
        if self._timer is not None:
            self._timer.cancel()
        for call in self._calls.values():
            call.cancel()
        self._calls.clear()

    def _told(self, place: int, digest: bytes, tokens: Tokens | None) -> None:
        """The engine has counted one of them, or will not."""
        if tokens is not None:
            self._tokenizer.remember(digest, tokens)
        del self._calls[place]
        self._counts[place] = tokens
        if tokens is None:
            self._finish(None)
        elif None not in self._counts:
            self._finish(self._answer())

    def _answer(self) -> tuple[Tokens, ...]:
        told = iter([each for each in self._counts if each is not None])
        return tuple(next(told) if tokens is None else tokens for tokens in self._exact)

    def _finish(self, counts: tuple[Tokens, ...] | None) -> None:
        self.cancel()
        self._done(counts)


class Asked:
    """The `Listener` to the answer to one question."""

    def __init__(self, told: Callable[[Tokens | None], None]) -> None:
        self._told = told
        self._is_good = False
        self._size = 0
        self._parts: list[bytes] = []

    def answer_head(self, head: AnswerHead) -> None:
        self._is_good = head.status == _OK

    def answer_data(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= MAX_ANSWER_BYTES:
            self._parts.append(data)
        else:
            self._parts.clear()

    def answer_end(self) -> None:
        self._told(counted(b"".join(self._parts)) if self._is_good else None)

    def answer_broken(self, failure: EngineFailure) -> None:  # noqa: ARG002 - what failed is the next request's to say
        self._told(None)


def _request(question: Question, authority: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        question.path.encode(),
        authority,
        len(question.body),
        question.body,
    )


def _digest(tenant: str, question: Question) -> bytes:
    digest = hashlib.blake2b(digest_size=16, key=hashlib.sha256(tenant.encode()).digest())
    digest.update(question.path.encode() + b"\0" + question.body)
    return digest.digest()
