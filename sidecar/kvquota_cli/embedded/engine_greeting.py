"""Waits for an engine that does not answer yet, and says what it serves once it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kvquota_cli.embedded.engine_models import ask_models
from kvquota_cli.embedded.pool_choice import Candidate, mismatch
from kvquota_sidecar.proxy.engine_side import EngineAddress

ASK_AGAIN_SECONDS: Final = 1.0


async def greet(address: EngineAddress, pool: Candidate, say: Callable[[str], None]) -> None:
    """Return when the engine has answered; warns when it serves another model than the pool's."""
    while True:
        answer = await ask_models(address)
        if answer.trouble is None:
            break
        await asyncio.sleep(ASK_AGAIN_SECONDS)
    say("the engine answers now")
    warning = answer.oddity or mismatch(pool, answer.names)
    if warning is not None:
        say(f"warning: {warning}")
