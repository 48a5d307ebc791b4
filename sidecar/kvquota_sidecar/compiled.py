"""Whether this is the compiled sidecar or the interpreted one (`hatch_build.py`)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final, Literal

_LARGEST: Final = "kvquota_sidecar.ledger.books"  # of the modules that are compiled, all together or none


def build() -> Literal["compiled", "interpreted"]:
    """What Python takes the modules from that every request passes."""
    spec = find_spec(_LARGEST)
    is_source = spec is None or spec.origin is None or spec.origin.endswith(".py")
    return "interpreted" if is_source else "compiled"
