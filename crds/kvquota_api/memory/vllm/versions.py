"""What differs between versions of vLLM: the meaning of the logged size, and the rules that came with a version.

Decides by version only. Pure.

Invariants:

1. The rules are those of 0.32 (and later); an older version changes only what is listed here, each with its reason.
2. A version that names no release, but a date or the main branch, is taken for one, and `guesses` says for which.
3. A version that cannot be read, or before `OLDEST`, is an error: nothing is planned by guess.

It does not know the defaults that depend on the platform: that is `resolving`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kvquota_api.memory.build_dates import VLLM_RELEASES, date_of, date_within, release_until
from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.quoting import quoted

Release = tuple[int, int, int]

PLANNED: Final[Release] = (0, 32, 0)  # the version whose source the rules were read from
OLDEST: Final[Release] = (0, 6, 0)  # the oldest version of which start-up logs were compared
_LAST_COMPARED: Final[Release] = (0, 20, 2)  # the last one before 0.32 of which logs were compared
_UNKNOWN_SINCE: Final[Release] = (0, 34, 0)  # nothing of this one was read
_UNTAGGED: Final = (0, 1)  # what builds of a checkout without tags call themselves, as in "0.1.dev1+g0a1b2c3"

_RELEASE: Final = re.compile(
    r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?"
    r"(?P<build>(?:\.\d{1,6})?(?:[.-]?(?:a|b|rc|post|dev)\d{0,9})*(?:\+[\w.\-]{1,80})?)",
    re.IGNORECASE,
)
_REST: Final = re.compile(
    r"(?P<words>[.\-/+][\w.\-+/]{0,80})?(?: ?(?P<engine>V[01]))?(?: ?\([^()]{0,80}\))?", re.IGNORECASE
)
_MAIN: Final = re.compile(r"(?:main|nightly)\b.{0,80}", re.IGNORECASE)  # builds that name no release

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


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a version text was taken for; `engine`: V0 or V1 where it names one; `guess`: a sentence or ""."""

    release: Release
    engine: str = ""
    guess: str = ""


def rules_of(version: str | None) -> Rules:
    """The rules of `version`, those of 0.32 where none is given; EngineUnknownError where it cannot be read."""
    read = _Reading(PLANNED) if version is None else _read(version)
    release = read.release
    if release < OLDEST:
        raise EngineUnknownError(
            f"vLLM {version}: rules from before {_text(OLDEST)} are not known: set engineVersion to a later version"
        )
    return Rules(
        certain=release <= _LAST_COMPARED or PLANNED <= release < _UNKNOWN_SINCE,
        logs_capacity=release >= _CAPACITY_LOGGED,
        hybrid_manager=release >= _HYBRID_MANAGER,
        chunked_prefill=read.engine == "V1" if read.engine else release >= _V1,
        async_default=release >= _ASYNC_DEFAULT,
        counts_steps_in_flight=release >= _IN_FLIGHT_STEPS,
        caches_state_prefixes=release >= _STATE_PREFIXES,
        latent_grain=_LATENT_GRAINS[release >= _LATENT_GRAIN],
    )


def release_of(version: str) -> Release:
    """(major, minor, patch) of a version like "0.32.0", "v0.20.2rc1", "0.7.3 V0", "2026-07" or "main"."""
    return _read(version).release


def guesses(version: str) -> tuple[str, ...]:
    """What was assumed of a version: for which release it is taken, and whose rules; nothing where it is known."""
    read = _read(version)
    said = (read.guess,) if read.guess else ()
    if read.release >= _UNKNOWN_SINCE:
        return (*said, f"rules of 0.32 are taken for {_shown(version)}, which kvquota does not know")
    if not rules_of(version).certain:
        return (*said, f"vLLM {_shown(version)} is planned by the rules of 0.32")
    return said


def _read(version: str) -> _Reading:
    text = " ".join(version.split())
    date = date_of(text)
    if date is not None:
        return _of_date(version, date)
    if _MAIN.fullmatch(text) is not None:
        return _of_main(version, text)
    found = _RELEASE.match(text)
    rest = None if found is None else _REST.fullmatch(text, found.end())
    if found is None or rest is None:
        raise EngineUnknownError(
            f"vLLM version {quoted(version)} cannot be read: write it like 0.32.0, main, or a date like 2026-07-14"
        )
    release = int(found[1]), int(found[2]), int(found[3] or 0)
    if release[:2] == _UNTAGGED:
        return _of_main(version, text)
    engine = (rest["engine"] or "").upper()
    exact = rest["words"] is None and not engine
    return _Reading(release, engine, "" if exact else _taken(version, release, engine))


def _of_main(version: str, text: str) -> _Reading:
    """A build from the main branch, of the newest rules where it has no date."""
    date = date_within(text)
    if date is not None:
        return _of_date(version, date)
    return _Reading(PLANNED, guess=f"vLLM {_shown(version)} is taken for {_text(PLANNED)}, the newest rules known")


def _of_date(version: str, date: str) -> _Reading:
    release = release_until(date, VLLM_RELEASES)
    return _Reading(release, guess=f"vLLM {_shown(version)} is taken for {_text(release)}, the last release until then")


def _taken(version: str, release: Release, engine: str) -> str:
    own = f" with its {engine} engine" if engine else ""
    return f"vLLM {_shown(version)} is taken for {_text(release)}{own}"


def _shown(version: str) -> str:
    return quoted(version).strip("'")


def _text(release: Release) -> str:
    return ".".join(str(part) for part in release)
