"""Carry TCP connections from a listening socket made elsewhere to one address: `python relay.py FD HOST PORT`.

Started in the node's network namespace with a socket that listens in the test's own one, it lets any client library
reach a pod or the API server through 127.0.0.1. A half-closed side stays half closed; a reset is passed on as a reset.
"""

import asyncio
import contextlib
import socket
import struct
import sys

CHUNK_BYTES = 1 << 16
"""Bytes moved at a time; the memory bound of a connection is about four of these."""

CONNECT_TIMEOUT_S = 10.0
"""Seconds for the far side to accept: a pod's bridge refuses or accepts at once."""


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Move bytes until the reader's end, then close the writer's half."""
    while chunk := await reader.read(CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def join(
    near: tuple[asyncio.StreamReader, asyncio.StreamWriter], far: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    """Carry both ways until both halves are closed or either side breaks."""
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(carry(near[0], far[1]))
            both.create_task(carry(far[0], near[1]))
    except* OSError:
        _reset(near[1])
        _reset(far[1])


def _reset(writer: asyncio.StreamWriter) -> None:
    """Make the close a reset, as the broken side's was."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def serve(listener: socket.socket, host: str, port: int) -> None:
    """Relay every accepted connection, for ever; a target that cannot be reached resets the client."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    far = await asyncio.open_connection(host, port)
            except OSError:
                _reset(writer)
                return
            with contextlib.closing(far[1]):
                await join((reader, writer), far)

    server = await asyncio.start_server(relay, sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], int(sys.argv[3])))
