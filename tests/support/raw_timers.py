"""Timers of the running loop, which is a port of the sidecar: what its own code asks of it can be given otherwise."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

from kvquota_sidecar.proxy.counting import Counting
from raw_client import DEADLINE_SECONDS


def let_the_tokenizer_take_its_time() -> None:
    """On this loop it may take as long as a busy machine takes: its timer is that of the test."""
    loop = asyncio.get_running_loop()
    usual = loop.call_later

    def call_later(
        delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        counts = isinstance(getattr(callback, "__self__", None), Counting)
        return usual(DEADLINE_SECONDS if counts else delay, callback, *args, context=context)

    vars(loop)["call_later"] = call_later
