"""Who a client is, by its credentials alone."""

from kvquota_sidecar.proxy.identity.directory import PEER_SECRET_HEADER, Directory
from kvquota_sidecar.proxy.identity.identifying import Failure, identify, to_withhold
from kvquota_sidecar.proxy.identity.naming import MAX_KEY_BYTES

__all__ = [
    "MAX_KEY_BYTES",
    "PEER_SECRET_HEADER",
    "Directory",
    "Failure",
    "identify",
    "to_withhold",
]
