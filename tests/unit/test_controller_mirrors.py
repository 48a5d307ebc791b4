"""What a watch keeps up to date: where it goes on, and when it begins anew."""

import asyncio
from typing import Any

import pytest

import virtual_time
from kvquota_operator.adapters.api import Json
from kvquota_operator.adapters.watch import Collection, Mirror
from kvquota_operator.ports import ClusterError, ClusterTimeoutError, ExpiredError, ThrottledError, UnreachableError
from scripted_api import ScriptedApi, body


def event(kind: str, uid: str = "a", version: int = 1, **more: Any) -> Json:
    return {"type": kind, "object": body(uid, version, **more)}


GONE = {"type": "ERROR", "object": {"code": 410, "message": "too old"}}


class Watched:
    """A mirror over a scripted API, until the script is over."""

    def __init__(self, *answers: Any) -> None:
        self.api = ScriptedApi(*answers)
        self.restarts: list[str] = []
        self.changes = 0
        self.mirror: Mirror[Any] | None = None

    def play(self) -> list[str]:
        async def scene() -> None:
            self.mirror = Mirror(
                self.api,  # type: ignore[arg-type]  # a fake of what is used
                virtual_time.LoopClock(),
                Collection("/pods"),
                parse=lambda each: each.get("value"),
                replaced=self._count,
                restarted=self.restarts.append,
            )
            running = asyncio.create_task(self.mirror.run())
            await asyncio.wait([running])
            assert isinstance(running.exception(), IndexError)

        virtual_time.run(scene())
        return self.api.asked[:-1]

    def _count(self, *_: Any) -> None:
        self.changes += 1

    @property
    def items(self) -> dict[str, Any]:
        assert self.mirror is not None
        return dict(self.mirror.items)


def test_a_watch_goes_on_from_the_last_version_that_it_saw_bookmarks_included() -> None:
    watched = Watched(
        ([body("a", 3, value="a")], "5"),
        [event("MODIFIED", "a", 7, value="b"), event("BOOKMARK", "-", 20)],
        [event("ADDED", "c", 21, value="c"), event("DELETED", "a", 22, value="b")],
        [],
    )
    assert watched.play() == ["list", "watch from 5", "watch from 20", "watch from 22"]
    assert (watched.items, watched.restarts) == ({"c": "c"}, [])


@pytest.mark.parametrize(
    "end",
    [
        pytest.param([GONE], id="410 within a watch"),
        pytest.param(ExpiredError("410"), id="410 instead of a watch"),
        pytest.param([{"type": "NOVEL", "object": {}}], id="an event that nobody knows"),
    ],
)
def test_a_watch_that_cannot_go_on_begins_with_a_list_and_keeps_what_it_knows_meanwhile(end: Any) -> None:
    watched = Watched(
        ([body("a", 3, value="a"), body("b", 3, value="b")], "5"),
        end,
        UnreachableError("away for a moment"),
        ([body("a", 3, value="a")], "9"),
        [],
    )
    assert watched.play() == ["list", "watch from 5", "list", "list", "watch from 9"]
    assert (watched.items, watched.restarts) == ({"a": "a"}, ["Expired", "Unreachable"])


@pytest.mark.parametrize("error", [UnreachableError("broken"), ClusterTimeoutError("silent"), ThrottledError("slow")])
def test_a_watch_that_breaks_goes_on_where_it_was(error: ClusterError) -> None:
    watched = Watched(([body("a", 3, value="a")], "5"), [event("MODIFIED", "a", 8, value="b"), error], [])
    assert watched.play() == ["list", "watch from 5", "watch from 8"]
    assert (watched.items, watched.restarts) == ({"a": "b"}, [error.reason])


@pytest.mark.parametrize(
    "end",
    [
        pytest.param([], id="the watch ends"),
        pytest.param(UnreachableError("away"), id="it breaks"),
        pytest.param(ClusterTimeoutError("504: Too large resource version: 8, current: 6"), id="it is refused"),
    ],
)
def test_a_server_that_is_behind_the_watch_is_listed_anew(end: Any) -> None:
    watched = Watched(
        ([body("a", 3, value="a")], "5"),
        [event("MODIFIED", "a", 7, value="b"), event("ADDED", "c", 8, value="c")],
        end,
        ([body("a", 3, value="a")], "6"),
        [event("MODIFIED", "a", 7, value="d")],
        [],
    )
    watched.api.at = [8, 6]
    assert watched.play() == ["list", "watch from 5", "watch from 8", "list", "watch from 6", "watch from 7"]
    assert (watched.items, watched.restarts[-1]) == ({"a": "d"}, "PutBack")


def test_a_first_list_is_told_even_if_it_is_empty_and_later_only_news() -> None:
    watched = Watched(([], "5"), [event("ADDED", "a", 6, value=1)], [GONE], ([body("a", 6, value=1)], "9"), [])
    watched.play()
    assert watched.changes == 2


def test_a_watch_that_breaks_again_and_again_waits_longer_and_longer() -> None:
    watched = Watched(([], "5"), *[UnreachableError("away")] * 12)
    assert elapsed(watched) == pytest.approx(0.2 * (2**7 - 1) + 15 * 5, rel=0.3)


def test_a_watch_that_says_something_before_each_break_is_back_at_once() -> None:
    broken = [[event("BOOKMARK", "-", version), UnreachableError("cut")] for version in range(6, 18)]
    assert elapsed(Watched(([], "5"), *broken)) == pytest.approx(0.2 * 12, rel=0.3)


@pytest.mark.parametrize(
    ("failures", "told"),
    [
        pytest.param([ClusterTimeoutError("silent")], ["INFO"], id="one silence"),
        pytest.param([ClusterTimeoutError("silent")] * 4, ["INFO", "WARNING"], id="silence that lasts"),
        pytest.param(
            [ClusterTimeoutError("silent"), [event("BOOKMARK", "-", 6)], ClusterTimeoutError("silent")],
            ["INFO", "INFO"],
            id="silence, a word, silence",
        ),
        pytest.param([UnreachableError("away")] * 3, ["WARNING"], id="a server that is away"),
        pytest.param([[GONE], ([], "9")], [], id="a position that is too old"),
    ],
)
def test_how_loud_a_broken_watch_is_told(
    failures: list[Any], told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        Watched(([], "5"), *failures).play()
    assert [record.levelname for record in caplog.records if record.name.endswith("watch")] == told


def test_a_watch_that_is_asked_to_wait_waits() -> None:
    watched = Watched(([], "5"), ThrottledError("slow down", retry_after=40.0))
    assert elapsed(watched) >= 40.0


def elapsed(watched: Watched) -> float:
    times: list[float] = []

    class Timed(ScriptedApi):
        def _next(self, asked: str) -> Any:
            times.append(asyncio.get_running_loop().time())
            return super()._next(asked)

    watched.api = Timed(*watched.api.answers)
    watched.play()
    return times[-1] - times[0]
