"""Where built and generated parts are kept between runs."""

import os
from pathlib import Path


def cache_root() -> Path:
    """`$KVQUOTA_CACHE`, else `kvquota` in the user's cache directory; the directory need not exist yet."""
    chosen = os.environ.get("KVQUOTA_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvquota"
