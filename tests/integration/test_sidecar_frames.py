"""A stream that is ended in the middle of one of the engine's frames: nothing of ours may get into that frame."""

from kvquota_sidecar.proxy.metering import MAX_FRAME_BYTES
from kvquota_sidecar.proxy.relay import Outcome
from kvquota_sidecar.refusals import Code, refuse
from sidecar_rig import both_ends, on_both_loops, sent

HUGE = b'data: {"choices":[{"text":"' + b"y" * (2 * MAX_FRAME_BYTES)


@on_both_loops
async def test_a_stream_that_is_ended_in_the_middle_of_a_frame_is_broken_off() -> None:
    async with both_ends() as (running, engine), sent(running, engine, stream=True) as (client, upstream):
        upstream.begin_stream()
        upstream.chunk(HUGE)
        got = await client.line(b"y" * MAX_FRAME_BYTES)
        running.sidecar._desk.end_all(refuse(Code.DRAINING), Outcome.DRAINED)
        got += await client.eof()
        await upstream.gone()
        await running.idle()
    assert b"draining" not in got
    assert not got.endswith(b"0\r\n\r\n")


@on_both_loops
async def test_a_stream_that_is_ended_while_half_a_frame_is_held_back_gets_its_final_event_in_place_of_it() -> None:
    async with both_ends() as (running, engine), sent(running, engine, stream=True) as (client, upstream):
        upstream.begin_stream()
        upstream.frame("whole")
        upstream.chunk(b'data: {"choices":[{"text":"hal')
        got = await client.line(b"\n\n\r\n")
        running.sidecar._desk.end_all(refuse(Code.DRAINING), Outcome.DRAINED)
        got += await client.line(b"0\r\n\r\n")
        await upstream.gone()
        await running.idle()
    assert b"hal" not in got
    assert b'"code":"draining"' in got
    assert got.endswith(b"\n\n\r\n0\r\n\r\n")
