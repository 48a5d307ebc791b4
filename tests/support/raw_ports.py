"""The ports through which a sidecar reaches the world, with faults in them: its connections and its timers.

They are given to it and not patched into it, so a compiled sidecar meets them too. What the sidecar does on its tick is
spared: a fault there ends the process.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvquota_sidecar.proxy.client_side import ClientConnection
from kvquota_sidecar.proxy.engine_side import EngineLink
from raw_faults import Faults
from sidecar_rig import Running


class Ports:
    """`faults`: those of the play that goes on."""

    def __init__(self) -> None:
        self.faults: Faults | None = None

    @contextmanager
    def watched(self, faults: Faults, _: Running) -> Iterator[None]:
        self.faults = faults
        try:
            yield
        finally:
            self.faults = None

    def pass_by(self, point: str) -> None:
        if self.faults is not None and not _on_the_tick():
            self.faults.pass_by(point)

    def open(self) -> None:
        """On the running loop all connections and timers of a sidecar are watched from now on."""
        loop = asyncio.get_running_loop()
        serve, dial, later = loop.create_server, loop.create_connection, loop.call_later

        async def create_server(factory: Callable[[], Any], *args: Any, **more: Any) -> Any:
            return await serve(lambda: self._tapped(factory()), *args, **more)

        async def create_connection(factory: Callable[[], Any], *args: Any, **more: Any) -> Any:
            protocol = factory()
            if isinstance(protocol, EngineLink):
                self.pass_by("dial")
            transport, _ = await dial(lambda: self._tapped(protocol), *args, **more)
            return transport, protocol

        def call_later(delay: float, callback: Callable[..., object], *args: Any, **more: Any) -> Any:
            if type(getattr(callback, "__self__", None)).__module__.startswith("kvquota_sidecar."):
                self.pass_by("timer")
            return later(delay, callback, *args, **more)

        vars(loop).update(create_server=create_server, create_connection=create_connection, call_later=call_later)

    def _tapped(self, protocol: Any) -> Any:
        return Tap(protocol, self) if isinstance(protocol, ClientConnection | EngineLink) else protocol


def _on_the_tick() -> bool:
    task = asyncio.current_task()
    return task is not None and getattr(task.get_coro(), "__qualname__", "").startswith("Sidecar.")


class Tap(asyncio.Protocol):
    """What a connection hears goes on to the sidecar's own end of it, which gets a transport with faults."""

    def __init__(self, protocol: Any, ports: Ports) -> None:
        self._protocol = protocol
        self._ports = ports
        for name in ("data_received", "eof_received", "connection_lost", "pause_writing", "resume_writing"):
            vars(self)[name] = getattr(protocol, name)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._protocol.connection_made(FaultyTransport(transport, type(self._protocol).__name__, self._ports))


class FaultyTransport(asyncio.Transport):
    """A transport whose calls may fail: before they do anything, and where they end it, after it."""

    def __init__(self, transport: Any, owner: str, ports: Ports) -> None:
        super().__init__()
        self._transport = transport
        for name in ("write", "pause_reading", "resume_reading", "get_write_buffer_size", "is_closing"):
            vars(self)[name] = _before(getattr(transport, name), f"{owner}.{name}", ports)
        for name in ("close", "abort", "write_eof"):
            vars(self)[name] = _after(getattr(transport, name), f"{owner}.{name}", ports)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)


def _before(call: Callable[..., Any], point: str, ports: Ports) -> Callable[..., Any]:
    def failing(*args: Any) -> Any:
        ports.pass_by(point)
        return call(*args)

    return failing


def _after(call: Callable[..., Any], point: str, ports: Ports) -> Callable[..., Any]:
    def failing(*args: Any) -> Any:
        call(*args)
        ports.pass_by(point)

    return failing
