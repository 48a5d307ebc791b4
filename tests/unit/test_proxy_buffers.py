"""Whose bytes are held, and when that is too much."""

from kvquota_sidecar.proxy.buffers import Buffers


def test_all_together_are_held_to_the_limit() -> None:
    buffers = Buffers(limit_bytes=100, one_body_bytes=10)
    buffers.change(None, 60)
    buffers.change("a", 40)
    assert not buffers.are_over("a")
    buffers.change(None, 1)
    assert buffers.are_over(None)
    assert buffers.are_over("a")
    buffers.change("a", -40)
    assert not buffers.are_over(None)
    assert buffers.total_bytes == 61


def test_one_owner_is_held_to_half_of_it() -> None:
    buffers = Buffers(limit_bytes=100, one_body_bytes=10)
    buffers.change("a", 50)
    assert not buffers.are_over("a")
    buffers.change("a", 1)
    assert buffers.are_over("a")
    assert not buffers.are_over("b")
    assert not buffers.are_over(None)


def test_one_owner_may_hold_one_body_however_small_the_half_is() -> None:
    buffers = Buffers(limit_bytes=100, one_body_bytes=80)
    buffers.change("a", 80)
    assert not buffers.are_over("a")
    buffers.change("a", 1)
    assert buffers.are_over("a")


def test_who_holds_nothing_is_forgotten() -> None:
    buffers = Buffers(limit_bytes=100, one_body_bytes=10)
    for at in range(1000):
        buffers.change(f"tenant-{at}", 5)
        buffers.change(f"tenant-{at}", -5)
    assert (buffers.total_bytes, buffers.owners) == (0, 0)
