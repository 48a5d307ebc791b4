"""What differs between versions of SGLang, as far as its KV memory depends on it.

Decides by version only. Pure.

Invariants:

1. The rules are those of 0.5.23; an older version changes only what is listed here, each with the first version that
   has it.
2. A date stands for the last release until then. A version that cannot be read is an error: nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvquota_api.memory.build_dates import date_of
from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.quoting import quoted

Release = tuple[int, int, int, int]

PLANNED: Final[Release] = (0, 5, 23, 0)  # the version whose source the rules were read from
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?(?:[.+-]?(?:rc|dev|a|b|g)[a-z0-9.+-]*)?")

# Releases by their date; an older build is taken for _BEFORE.
_RELEASED: Final[tuple[tuple[str, Release], ...]] = (
    ("2025-10-06", (0, 5, 3, 0)),
    ("2025-10-09", (0, 5, 3, 1)),
    ("2025-10-24", (0, 5, 4, 0)),
    ("2025-12-11", (0, 5, 6, 2)),
    ("2026-01-01", (0, 5, 7, 0)),
    ("2026-01-23", (0, 5, 8, 0)),
    ("2026-02-23", (0, 5, 9, 0)),
    ("2026-04-05", (0, 5, 10, 0)),
    ("2026-05-07", (0, 5, 11, 0)),
    ("2026-05-16", (0, 5, 12, 0)),
    ("2026-07-10", (0, 5, 15, 0)),
    ("2026-08-21", (0, 5, 18, 0)),
    ("2026-10-30", PLANNED),
)
_BEFORE: Final[Release] = (0, 5, 2, 0)

# The printed size of a sparse MLA pool counts the indexer's keys (#11309).
_INDEXER_PRINTED: Final[Release] = (0, 5, 3, 1)
# MiMo-V2-Flash no longer fixes its ratio of sliding to full tokens at 1 (#15488).
_MIMO_RATIO_FREE: Final[Release] = (0, 5, 7, 0)
# On sm100 the sparse MLA kernels with fp8 read plain rows (trtllm is their default backend).
_PLAIN_SPARSE_FP8: Final[Release] = (0, 5, 10, 0)
# Layers that share the indexer of another one keep no keys of their own.
_SHARED_INDEXERS_SPARED: Final[Release] = (0, 5, 18, 0)

# Architectures whose sliding or chunked layers have a pool of their own, with the first version that does so
# (configs/model_config.py: is_hybrid_swa_model); all others keep every token in these layers too.
_SLIDING_POOLS: Final[Mapping[str, Release]] = {
    "Llama4ForConditionalGeneration": (0, 5, 8, 0),
    "GptOssForCausalLM": (0, 5, 8, 0),
    "MiMoV2FlashForCausalLM": (0, 0, 0, 0),
    "MiMoV2ForCausalLM": (0, 5, 11, 0),
    "Step3p5ForCausalLM": (0, 5, 9, 0),
    "Step3p7ForConditionalGeneration": (0, 5, 15, 0),
    "Gemma4ForCausalLM": (0, 5, 11, 0),
    "Gemma4ForConditionalGeneration": (0, 5, 11, 0),
    "Gemma4UnifiedForConditionalGeneration": (0, 5, 15, 0),
    "LagunaForCausalLM": (0, 5, 12, 0),
    "MellumForCausalLM": PLANNED,
    "MuseGlimmerForCausalLM": PLANNED,
    "MuseGlimmerForConditionalGeneration": PLANNED,
    "GraniteSWAForCausalLM": PLANNED,
    "GraniteMoeSWAForCausalLM": PLANNED,
}


@dataclass(frozen=True, slots=True)
class Rules:
    """What one version does, each True for 0.5.23."""

    release: Release
    prints_indexer: bool
    frees_mimo_ratio: bool
    plain_sparse_fp8: bool
    spares_shared_indexers: bool

    def sliding_pool(self, architecture: str) -> bool:
        """Whether the sliding layers of the architecture have a pool of their own."""
        return architecture in _SLIDING_POOLS and self.release >= _SLIDING_POOLS[architecture]


def rules_of(version: str | None) -> Rules:
    """The rules of `version`, those of PLANNED where none is given; EngineUnknownError where it cannot be read."""
    release = PLANNED if version is None else release_of(version)
    return Rules(
        release=release,
        prints_indexer=release >= _INDEXER_PRINTED,
        frees_mimo_ratio=release >= _MIMO_RATIO_FREE,
        plain_sparse_fp8=release >= _PLAIN_SPARSE_FP8,
        spares_shared_indexers=release >= _SHARED_INDEXERS_SPARED,
    )


def version_notes(version: str | None) -> tuple[str, ...]:
    """What is assumed where no version is given."""
    if version is not None:
        return ()
    return (f"engine-version: {'.'.join(map(str, PLANNED[:3]))} of SGLang, the newest that is known",)


def release_of(version: str) -> Release:
    """(major, minor, patch, post) of a version like "0.5.3.post1", or of the last release before a date."""
    date = date_of(version)
    if date is not None:
        return max((release for since, release in _RELEASED if since <= date), default=_BEFORE)
    found = _VERSION.fullmatch(version.strip())
    if found is None:
        raise EngineUnknownError(f"SGLang version {quoted(version)} cannot be read: write it like 0.5.23 or 2026-10-30")
    major, minor, patch, post = found.groups()
    return int(major), int(minor), int(patch), int(post or 0)
