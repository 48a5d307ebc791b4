"""Whether the engine goes on with requests whose connections are closed."""

from dataclasses import dataclass, field

import pytest

from kvquota_sidecar.engines.aborts import GRACE_SECONDS, PATIENCE_SECONDS, Aborts, Load
from kvquota_sidecar.ledger.asking import EngineSample


@dataclass(slots=True)
class Scene:
    """An engine that is read every second, and what it was given. `ours` and `foreign` sequences run in it."""

    aborts: Aborts = field(default_factory=Aborts)
    now: float = 0.0
    ours: int = 0
    foreign: int = 0
    deaf: int = 0  # sequences that were cut off and go on
    cut: int = 0
    life: float = 1.0
    verdict: bool | None = None

    def read(self, seconds: int = 1) -> bool | None:
        """Readings for so long; the last verdict."""
        for _ in range(seconds):
            self.now += 1
            load = Load(self.ours, self.cut)
            runs = self.ours + self.foreign + self.deaf
            sample = EngineSample(running=runs - runs // 3, waiting=runs // 3, started_at=self.life)
            self.verdict = self.aborts.look(sample, load, load, self.now)
        return self.verdict

    def close(self, sequences: int, *, deaf: bool) -> None:
        self.ours -= sequences
        self.cut += sequences
        self.deaf += sequences if deaf else 0


def known(*, ours: int, foreign: int = 0) -> Scene:
    """An engine that has been read for a while."""
    scene = Scene(ours=ours, foreign=foreign)
    scene.read(3)
    return scene


GRACE = int(GRACE_SECONDS)
PATIENCE = int(PATIENCE_SECONDS) + GRACE - 1  # readings after a close that are no evidence yet


def test_an_engine_that_nobody_leaves_is_not_accused() -> None:
    scene = Scene(ours=5)
    assert scene.read(3 * PATIENCE) is False


def test_an_engine_that_goes_on_is_found_out_and_stays_so() -> None:
    scene = known(ours=5)
    scene.close(2, deaf=True)
    assert scene.read(PATIENCE) is False
    assert scene.read() is True
    scene.deaf = 0
    assert scene.read(PATIENCE) is True


def test_an_engine_that_obeys_the_next_time_is_acquitted() -> None:
    scene = known(ours=5)
    scene.close(2, deaf=True)
    assert scene.read(PATIENCE + 2) is True
    scene.close(1, deaf=False)
    assert scene.read(GRACE) is True  # it may not have noticed: too early to say
    assert scene.read() is False


def test_an_engine_that_is_deaf_again_is_found_out_beyond_what_it_still_runs() -> None:
    scene = known(ours=9)
    scene.close(2, deaf=True)
    assert scene.read(PATIENCE + 1) is True
    scene.read(3)
    scene.close(3, deaf=True)
    assert scene.read(PATIENCE + 1) is True


def test_requests_that_end_by_themselves_in_time_are_no_evidence() -> None:
    scene = known(ours=5)
    scene.close(2, deaf=True)
    scene.read(PATIENCE // 2)
    scene.deaf = 0
    assert scene.read(PATIENCE) is False


def test_sequences_of_others_that_were_there_before_are_no_evidence() -> None:
    scene = known(ours=5, foreign=7)
    scene.close(2, deaf=False)
    assert scene.read(3 * PATIENCE) is False


def test_sequences_of_others_that_came_and_went_before_are_no_evidence_when_they_come_back() -> None:
    scene = known(ours=5, foreign=2)
    scene.foreign = 0
    scene.read(3)
    scene.close(2, deaf=False)
    scene.foreign = 2
    assert scene.read(3 * PATIENCE) is False


def test_clients_that_leave_all_the_time_are_no_evidence_while_the_engine_keeps_up() -> None:
    scene = known(ours=1000)
    for _ in range(2 * PATIENCE):
        scene.close(3, deaf=True)
        scene.deaf = min(scene.deaf, 6)  # it notices two seconds later
        assert scene.read() is False


def test_clients_that_leave_all_the_time_do_not_hide_an_engine_that_notices_none() -> None:
    scene = known(ours=1000)
    for _ in range(2 * PATIENCE):
        scene.close(3, deaf=True)
        scene.read()
    assert scene.verdict is True


def test_what_ran_before_a_close_that_was_judged_does_not_count_for_the_next_one() -> None:
    scene = known(ours=9, foreign=5)
    scene.close(1, deaf=False)
    scene.foreign = 0
    scene.read(GRACE + 1)
    scene.read()
    scene.close(3, deaf=True)
    assert scene.read(PATIENCE + 1) is True


def test_another_life_of_the_engine_begins_without_a_verdict() -> None:
    scene = known(ours=5)
    scene.close(2, deaf=True)
    assert scene.read(PATIENCE + 1) is True
    scene.life, scene.deaf = 2.0, 0
    assert scene.read() is False


def test_a_close_before_the_first_reading_cannot_be_judged() -> None:
    scene = Scene(ours=5)
    scene.close(2, deaf=True)
    assert scene.read(2 * PATIENCE) is False


def test_an_engine_that_does_not_say_what_it_runs_gets_no_verdict() -> None:
    load = Load(3, 1)
    assert Aborts().look(EngineSample(waiting=3, started_at=1.0), load, load, 1.0) is None


def test_an_engine_that_says_only_what_runs_is_judged_by_that() -> None:
    aborts = Aborts()
    assert aborts.look(EngineSample(running=2), Load(2, 0), Load(2, 0), 0.0) is False
    assert aborts.look(EngineSample(running=2), Load(0, 2), Load(0, 2), 1.0) is False
    for second in range(2, 3 + PATIENCE):
        verdict = aborts.look(EngineSample(running=2), Load(0, 2), Load(0, 2), float(second))
    assert verdict is True


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3)], ids=["one way", "the other"])
def test_of_what_came_or_went_while_the_engine_was_asked_the_most_may_have_been_foreign(
    before: int, after: int
) -> None:
    aborts = Aborts()
    aborts.look(EngineSample(running=3), Load(before, 0), Load(after, 0), 0.0)
    for second in range(1, 3 * PATIENCE):
        verdict = aborts.look(EngineSample(running=2), Load(0, 1), Load(0, 1), float(second))
    assert verdict is False


@pytest.mark.parametrize(
    ("before", "after"), [(0, 3), (3, 0)], ids=["given while it was asked", "over while it was asked"]
)
def test_what_comes_or_goes_while_the_engine_is_asked_is_not_held_against_it(before: int, after: int) -> None:
    aborts = Aborts()
    aborts.look(EngineSample(running=1), Load(1, 0), Load(1, 0), 0.0)
    for second in range(1, 3 * PATIENCE):
        verdict = aborts.look(EngineSample(running=3), Load(before, 1), Load(after, 1), float(second))
    assert verdict is False
