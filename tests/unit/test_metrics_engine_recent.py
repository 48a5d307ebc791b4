"""What the engine did in the last ten minutes, and what of it went past the sidecar."""

from dataclasses import dataclass, field

import pytest

from kvquota_api.usage import EngineRecent
from kvquota_sidecar.engines.aborts import Load
from kvquota_sidecar.engines.recent import Recent
from kvquota_sidecar.ledger.asking import EngineSample

MINUTE = 60


@dataclass
class Scene:
    """An engine that finishes what it gets; `ours` are under way, `begun` were ever sent."""

    recent: Recent = field(default_factory=Recent)
    now: float = 0.0
    ours: int = 0
    begun: int = 0
    finished: int = 0
    life: float = 1.0

    def send(self, sequences: int) -> None:
        self.begun += sequences
        self.ours += sequences

    def finish(self, sequences: int) -> None:
        self.ours -= sequences
        self.finished += sequences

    def finish_foreign(self, sequences: int) -> None:
        self.finished += sequences

    def look(self, seconds: float = 1.0) -> EngineRecent:
        self.now += seconds
        load = Load(given=self.ours, cut=0, begun=self.begun)
        sample = EngineSample(running=self.ours, finished=self.finished, started_at=self.life)
        return self.recent.look(sample, load, load, self.now)


def counts(told: EngineRecent) -> tuple[int | None, int | None]:
    return told.finished, told.foreign


def test_what_the_sidecar_sent_is_never_foreign() -> None:
    scene = Scene()
    scene.send(7)
    scene.look()
    for _ in range(100):
        scene.send(3)
        scene.look(10)
        scene.finish(3)
        assert scene.look(10).foreign == 0


def test_what_ran_when_the_sidecar_began_is_not_foreign() -> None:
    scene = Scene()
    orphans = EngineSample(running=4, waiting=2, finished=10, started_at=1.0)
    nothing = Load(given=0, cut=0, begun=0)
    scene.recent.look(orphans, nothing, nothing, 0.0)
    ended = EngineSample(running=0, waiting=0, finished=16, started_at=1.0)
    assert counts(scene.recent.look(ended, nothing, nothing, 5.0)) == (6, 0)
    more = EngineSample(running=0, waiting=0, finished=19, started_at=1.0)
    assert counts(scene.recent.look(more, nothing, nothing, 10.0)) == (9, 3)


def test_what_went_past_is_counted_beyond_what_was_under_way() -> None:
    scene = Scene()
    scene.look()
    scene.send(50)
    scene.finish(50)
    scene.finish_foreign(20)
    assert counts(scene.look()) == (70, 20)


def test_what_was_sent_while_the_engine_answered_is_not_foreign() -> None:
    recent = Recent()
    idle = EngineSample(running=0, finished=0, started_at=1.0)
    recent.look(idle, Load(0, 0, 0), Load(0, 0, 4), 0.0)
    told = recent.look(EngineSample(running=0, finished=9, started_at=1.0), Load(0, 0, 4), Load(0, 0, 9), 1.0)
    assert counts(told) == (9, 0)


def test_it_is_forgotten_after_ten_minutes() -> None:
    scene = Scene()
    scene.look()
    scene.finish_foreign(20)
    assert counts(scene.look()) == (20, 20)
    for _ in range(9):
        assert counts(scene.look(MINUTE)) == (20, 20)
    assert counts(scene.look(2 * MINUTE)) == (0, 0)


def test_the_memory_is_bounded() -> None:
    scene = Scene()
    for _ in range(5_000):
        scene.look(0.5)
    assert len(scene.recent._marks) <= 11


def test_the_busiest_part_tells_of_what_went_past() -> None:
    """At the beginning 40 were under way, and what went past meanwhile cannot be told from them; later it can."""
    scene = Scene()
    scene.send(40)
    scene.look()
    scene.finish(40)
    scene.look(MINUTE)
    scene.finish_foreign(15)
    assert counts(scene.look()) == (55, 15)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            EngineSample(running=0, finished=100, started_at=1.0),
            EngineSample(running=0, finished=120, started_at=2.0),
            id="another life",
        ),
        pytest.param(
            EngineSample(running=0, finished=100, started_at=1.0),
            EngineSample(running=0, finished=99, started_at=1.0),
            id="a counter that fell",
        ),
        pytest.param(
            EngineSample(running=0, finished=100, cached_tokens=8, started_at=1.0),
            EngineSample(running=0, finished=120, cached_tokens=7, started_at=1.0),
            id="any of them",
        ),
    ],
)
def test_a_new_beginning_counts_nothing_of_the_old_one(before: EngineSample, after: EngineSample) -> None:
    recent, load = Recent(), Load(0, 0, 0)
    recent.look(before, load, load, 0.0)
    assert counts(recent.look(after, load, load, 1.0)) == (0, 0)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(EngineSample(), EngineSample(), EngineRecent(), id="an engine that counts nothing"),
        pytest.param(
            EngineSample(finished=1),
            EngineSample(finished=9),
            EngineRecent(finished=8),
            id="nobody says what ran at the beginning",
        ),
        pytest.param(
            EngineSample(running=0),
            EngineSample(running=0, finished=9),
            EngineRecent(),
            id="a counter that comes later has no beginning",
        ),
        pytest.param(
            EngineSample(prompt_tokens=100, cached_tokens=10),
            EngineSample(prompt_tokens=300, cached_tokens=160),
            EngineRecent(prompt_tokens=200, cached_tokens=150),
            id="tokens looked up and found",
        ),
    ],
)
def test_absent_is_not_zero(before: EngineSample, after: EngineSample, expected: EngineRecent) -> None:
    recent, load = Recent(), Load(0, 0, 0)
    recent.look(before, load, load, 0.0)
    assert recent.look(after, load, load, 1.0) == expected
