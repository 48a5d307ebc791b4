"""Which statuses are remembered, and for how long."""

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
