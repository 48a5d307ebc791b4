"""An API server that answers from a script, in simulated time."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import virtual_time
from kvquota_operator.adapters.api import Json


def body(uid: str, version: int, **more: Any) -> Json:
    """An object as the API server stores it."""
    return {"metadata": {"uid": uid, "name": uid, "namespace": "inference", "resourceVersion": str(version)}, **more}


class ScriptedApi:
    """An API server that answers what it is told to, in order; what is no answer is raised.

    `at`: its versions, in order, for those who ask for one before they go on; as far as they last. Then it is ahead.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.created: list[Json] = []
        self.at: list[int] = []

    def _next(self, asked: str) -> Any:
        self.asked.append(asked)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def get(self, path: str, *, timeout_seconds: float = 10.0) -> Json:
        answer: Json = self._next(f"get within {timeout_seconds:g} s")
        return answer

    async def create(self, path: str, body: Json) -> Json:
        self.created.append(body)
        return body

    async def list(self, path: str, selector: str = "") -> tuple[list[Json], str]:
        answer: tuple[list[Json], str] = self._next("list")
        return answer

    async def version_of(self, path: str, selector: str = "") -> str:
        return str(self.at.pop(0) if self.at else 2**40)

    async def watch(self, path: str, version: str, selector: str = "") -> AsyncIterator[Json]:
        for each in self._next(f"watch from {version}"):
            if isinstance(each, Exception):
                raise each
            yield each


def in_time(scene: Callable[[], Awaitable[Any]]) -> Any:
    """What the scene gives, in simulated time."""

    async def whole() -> Any:
        return await scene()

    return virtual_time.run(whole())
