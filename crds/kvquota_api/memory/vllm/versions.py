"""What differs between versions of vLLM: the meaning of the logged size, and the rules that came with a version.

Decides by version only. Pure.

Invariants:

1. The rules are those of 0.32 (and later); an older version changes only what is listed here, each with its reason.
2. A version that cannot be read, or before `OLDEST`, is an error: nothing is planned by guess.

It does not know the defaults that depend on the platform: that is `resolving`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.quoting import quoted

Release = tuple[int, int, int]

PLANNED: Final[Release] = (0, 32, 0)  # the version whose source the rules were read from
OLDEST: Final[Release] = (0, 6, 0)  # the oldest version of which start-up logs were compared
_LAST_COMPARED: Final[Release] = (0, 20, 2)  # the last one before 0.32 of which logs were compared
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:[.+-]?[a-z0-9.+-]*)?")

# Per-group capacity is logged since 0.20.2 (get_kv_cache_capacity); before, blocks // groups * block size.
_CAPACITY_LOGGED: Final[Release] = (0, 20, 2)
# The hybrid KV cache manager: before, local layers were kept like full ones.
_HYBRID_MANAGER: Final[Release] = (0, 10, 0)
# Chunked prefill and prefix caching are on by default since the V1 engine.
_V1: Final[Release] = (0, 8, 0)
# Asynchronous scheduling is on by default.
_ASYNC_DEFAULT: Final[Release] = (0, 14, 0)
# Tokens of every concurrent step are counted as in flight (vLLM pull request 47728, merged after 0.25.1).
_IN_FLIGHT_STEPS: Final[Release] = (0, 26, 0)
# State layers cache prefixes by default, a few states at a time (vLLM pull request 50991, merged after 0.27). Before,
# Mamba layers kept a state for every block where prefix caching was asked for.
_STATE_PREFIXES: Final[Release] = (0, 28, 0)
# Blocks of latents beside recurrent state are multiples of so many tokens: 64 in a log of 0.11.1.
_LATENT_GRAIN: Final[Release] = (0, 21, 0)
_LATENT_GRAINS: Final = (64, 128)


@dataclass(frozen=True, slots=True)
class Rules:
    """What one version does differently from 0.32: the flags are all True for 0.32.

    `latent_grain`: tokens that blocks of latents beside recurrent state are a multiple of. `certain`: the rules were
    read from this version's source, or compared with its logs; else those of 0.32 are taken.
    """

    certain: bool
    logs_capacity: bool
    hybrid_manager: bool
    chunked_prefill: bool
    async_default: bool
    counts_steps_in_flight: bool
    caches_state_prefixes: bool
    latent_grain: int


def rules_of(version: str | None) -> Rules:
    """The rules of `version`, those of 0.32 where none is given; EngineUnknownError where it cannot be read."""
    release = PLANNED if version is None else release_of(version)
    if release < OLDEST:
        raise EngineUnknownError(
            f"vLLM {version}: rules from before {_text(OLDEST)} are not known: set engineVersion to a later version"
        )
    return Rules(
        certain=release <= _LAST_COMPARED or release >= PLANNED,
        logs_capacity=release >= _CAPACITY_LOGGED,
        hybrid_manager=release >= _HYBRID_MANAGER,
        chunked_prefill=release >= _V1,
        async_default=release >= _ASYNC_DEFAULT,
        counts_steps_in_flight=release >= _IN_FLIGHT_STEPS,
        caches_state_prefixes=release >= _STATE_PREFIXES,
        latent_grain=_LATENT_GRAINS[release >= _LATENT_GRAIN],
    )


def release_of(version: str) -> Release:
    """(major, minor, patch) of a version like "0.32.0" or "v0.20.2rc1"."""
    found = _VERSION.fullmatch(version.strip())
    if found is None:
        raise EngineUnknownError(f"vLLM version {quoted(version)} cannot be read: write it like 0.32.0")
    major, minor, patch = found.groups()
    return int(major), int(minor), int(patch or 0)


def _text(release: Release) -> str:
    return ".".join(str(part) for part in release)
