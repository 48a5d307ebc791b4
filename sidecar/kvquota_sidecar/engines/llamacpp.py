"""What llama.cpp's server says of its KV cache: /metrics (with --metrics) and /slots (unless --no-slots).

Decides how slots become blocks; a block is a cell, which is one token. Pure.

Invariants:

1. What the engine does not say is None.
2. What a slot keeps of a request that is over is only cached: the next one reuses it. So the gauges of builds before
   #13660, `kv_cache_tokens` and `kv_cache_usage_ratio`, which count that too, are not read.
3. It is left alone for REST_SECONDS after a look. Whoever waits for a whole answer looks whether its client is still
   there once nothing was answered to anybody for a second: asked more often, it works on for clients that have left.
   Beside a stream, whose every token is an answer, it does so in any case.
4. Each of several slots may have a pool of its own or all of them one (--kv-unified), and nothing says which: the size
   is told only where there is one slot.

Sources: tools/server/server-context.cpp. `n_prompt_tokens` is all that a slot holds, what it generated too;
`Process-Start-Time-Unix` is no Unix time, only another number in every life. The second of 3. is HTTP_POLLING_SECONDS;
what comes of it was seen on build 11549.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from kvquota_api.amounts import Blocks, Tokens
from kvquota_sidecar.engines.exposition import LARGEST, counted, first_of, of_a_card, read, sum_of
from kvquota_sidecar.engines.reading import Marks, Reading
from kvquota_sidecar.ledger.asking import EngineSample

RUNNING: Final = ("llamacpp:requests_processing",)
WAITING: Final = ("llamacpp:requests_deferred",)
WORK: Final = ("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total")
COMPUTED: Final = ("llamacpp:prompt_tokens_total",)  # of prompts, without what was cached
CACHED: Final = ("llamacpp:prompt_tokens_cached_total",)  # of prompts, found in a slot; not in older builds
START_HEADER: Final = b"process-start-time-unix"
SLOTS_PATH: Final = "/slots"
REST_SECONDS: Final = 1.25  # a second, and a step or two
_CELL: Final = Tokens(1)
_NAMES: Final = (*RUNNING, *WAITING, *WORK, *CACHED)


_Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]


class Slot(msgspec.Struct, frozen=True):
    """One of the server's slots; `n_ctx` in cells."""

    is_processing: bool
    n_ctx: _Count | None = None
    n_prompt_tokens: _Count | None = None


def read_slots(body: bytes) -> tuple[Slot, ...]:
    """The slots of an answer to GET /slots; none where it is no such answer."""
    try:
        return msgspec.json.decode(body, type=tuple[Slot, ...])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()


def speaks_llamacpp(text: str) -> bool:
    """Whether an exposition is of llama.cpp's server."""
    return any(name in text for name in _NAMES)


def read_llamacpp(text: str, start: bytes, slots: tuple[Slot, ...]) -> Reading | None:
    """What it says; `start`: the header of that name, empty where there was none. None where it says nothing."""
    found = read(text, _NAMES)
    if not found and not slots:
        return None
    computed, cached = (counted(first_of(found, name)) for name in (COMPUTED, CACHED))
    running, waiting = (next((int(each.value) for each in first_of(found, name)), None) for name in (RUNNING, WAITING))
    sample = EngineSample(
        blocks=_pool(slots),
        block_tokens=_CELL,
        used_blocks=_held(slots),
        running=running if running is not None or not slots else sum(slot.is_processing for slot in slots),
        waiting=waiting,
        prompt_tokens=None if computed is None or cached is None else computed + cached,
        cached_tokens=cached,
    )
    return Reading(sample, Marks(constants=(start,) if start else (), work=sum_of(found, WORK)))


def _pool(slots: tuple[Slot, ...]) -> Blocks | None:
    sizes = [slot.n_ctx for slot in slots]
    return of_a_card(sizes[0]) if len(sizes) == 1 else None


def _held(slots: tuple[Slot, ...]) -> Blocks | None:
    """Cells of the slots that work; None where one of them does not say."""
    held = [slot.n_prompt_tokens for slot in slots if slot.is_processing]
    known = [each for each in held if each is not None]
    return Blocks(sum(known)) if slots and len(known) == len(held) else None
