"""What was written to objects, as far as it is remembered, and who changed it."""

import virtual_time
from kvquota_operator.adapters.mends import FIGHT_MENDS, REMEMBERED, Mends


def test_the_objects_that_were_written_longest_ago_are_forgotten() -> None:
    async def scene() -> None:
        mends = Mends(virtual_time.LoopClock())
        for number in range(REMEMBERED):
            mends.gave(str(number), {})
        for _ in range(FIGHT_MENDS):
            mends.mended("1")
        mends.gave("0", {})
        mends.gave("another", {})
        assert [mends.is_foreign(uid, {"state": "Edited"}) for uid in ("0", "1", "2")] == [True, False, True]
        assert not mends.mended("1")

    virtual_time.run(scene())


def test_what_an_object_has_by_a_write_whose_answer_was_lost_is_nobody_elses() -> None:
    mends = Mends(virtual_time.LoopClock())
    mends.tries("pod", "first")
    assert not mends.is_foreign("pod", "other"), "it was given nothing yet"
    mends.gave("pod", "first")
    mends.tries("pod", "second")
    found = [mends.is_foreign("pod", content) for content in ("first", "second", "other", None)]
    assert found == [False, False, True, True]
