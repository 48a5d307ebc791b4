"""When the framework is begun anew after its end, and when the operator gives up."""

import asyncio
import logging

import pytest

import virtual_time
from kvquota_operator.handlers.restarting import Patience, WatchingEndedError, restarting
from kvquota_operator.ports import ForbiddenError


def pauses(*lives: tuple[float, float], jitter: float = 0.0) -> list[float | None]:
    patience = Patience(lambda: jitter)
    return [patience.pause(began, ended) for began, ended in lives]


@pytest.mark.parametrize(
    ("lives", "wanted"),
    [
        pytest.param([(0, 1)] * 8, [0.5, 1, 2, 4, 5, 5, 5, 5], id="pauses double up to a longest"),
        pytest.param([(0, 1), (2, 3), (4, 64), (70, 71)], [0.5, 1, 0.5, 1], id="a life of a minute forgets"),
        pytest.param([(0, 1), (2, 61.9)], [0.5, 1], id="a shorter one does not"),
        pytest.param([(0, 1), (899, 900.9), (901, 901.1)], [0.5, 1, None], id="no life of a minute in a quarter hour"),
        pytest.param([(0, 5000), (5001, 5002)], [0.5, 1], id="the first end may come late"),
        pytest.param([(0, 1), (2, 950), (951, 952)], [0.5, 0.5, 1], id="a quarter hour that one life fills"),
    ],
)
def test_the_pause_after_each_end(lives: list[tuple[float, float]], wanted: list[float | None]) -> None:
    assert pauses(*lives) == wanted


def test_replicas_do_not_come_back_in_step() -> None:
    assert pauses((0, 1), (0, 1), jitter=1.0) == [0.375, 0.75]


class Scene:
    """What is begun anew lives for `seconds` and ends with `error`. `lines` says what happened, and when."""

    def __init__(self, seconds: float, error: BaseException | None) -> None:
        self.lines: list[str] = []
        self._seconds = seconds
        self._error = error

    def run(self, *, until: float) -> None:
        async def scene() -> None:
            self._start = asyncio.get_running_loop().time()
            watching = restarting(self._live, virtual_time.LoopClock(), restarted=self._say, jitter=lambda: 0.0)
            try:
                async with asyncio.timeout(until):
                    await watching
            finally:
                self._say("over")

        virtual_time.run(scene())

    async def _live(self) -> BaseException | None:
        self._say("begun")
        await asyncio.sleep(self._seconds)
        return self._error

    def _say(self, what: str) -> None:
        self.lines.append(f"{asyncio.get_running_loop().time() - self._start:g} {what}")


def test_it_is_begun_anew_and_every_end_is_told(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(1, ForbiddenError("401: no"))
    with pytest.raises(TimeoutError):
        scene.run(until=5)
    assert ", ".join(scene.lines) == (
        "0 begun, 1 Forbidden, 1.5 begun, 2.5 Forbidden, 3.5 begun, 4.5 Forbidden, 5 over"
    )
    assert caplog.record_tuples[0] == (
        "kvquota_operator.handlers.restarting",
        logging.WARNING,
        "the watch of pools and quotas ended (Forbidden: 401: no); it is begun anew in 0.5 s, "
        "and what is known holds on",
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        pytest.param(None, "Ended", id="no error"),
        pytest.param(ZeroDivisionError("x"), "ZeroDivisionError", id="a bug"),
        pytest.param(ForbiddenError("no"), "Forbidden", id="a refusal"),
    ],
)
def test_the_reason_is_one_word(error: BaseException | None, reason: str) -> None:
    scene = Scene(1, error)
    with pytest.raises(TimeoutError):
        scene.run(until=1.2)
    assert scene.lines == ["0 begun", f"1 {reason}", "1.2 over"]


def test_a_bug_that_comes_back_again_and_again_ends_the_process() -> None:
    bug = ZeroDivisionError("x")
    scene = Scene(0, bug)
    with pytest.raises(WatchingEndedError, match=r"not lasted for 60 s in 900 s \(ZeroDivisionError: x\)") as raised:
        scene.run(until=2000)
    assert raised.value.__cause__ is bug
    assert [line.split()[1] for line in scene.lines].count("begun") == 184
    assert 900 <= float(scene.lines[-1].split()[0]) <= 905


def test_what_lasts_for_a_minute_each_time_never_ends_the_process() -> None:
    scene = Scene(60, ZeroDivisionError("x"))
    with pytest.raises(TimeoutError):
        scene.run(until=3600)
    assert scene.lines[-1] == "3600 over"
