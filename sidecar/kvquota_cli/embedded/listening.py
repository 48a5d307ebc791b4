"""Which of the addresses cannot be listened on, after one of them could not."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from kvquota_sidecar.listening import written
from kvquota_sidecar.settings import Bind


def taken_address(binds: Mapping[str, Bind], error: OSError) -> str:
    """A sentence that names the option at fault. `binds`: addresses by option; `error`: what binding them raised."""
    for option, bind in binds.items():
        trouble = _trouble(bind)
        if trouble is not None:
            return f"cannot listen on {written(bind)}: {trouble}; give {option} another address"
    return f"cannot listen: {_reason(error)}; give {' and '.join(binds)} other addresses"


def _trouble(bind: Bind) -> str | None:
    family = socket.AF_INET6 if ":" in bind.host else socket.AF_INET
    try:
        socket.create_server((bind.host, bind.port), family=family).close()
    except OSError as error:
        return _reason(error)
    return None


def _reason(error: OSError) -> str:
    """In the system's words; a failed look-up of a name has a number of its own below 0, and brings its words along."""
    if error.errno and error.errno > 0 and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return (error.strerror or str(error)).partition(" (while")[0]
