"""A client's connection in TLS; the certificates are those of `kvquota_sidecar.tls`."""

from __future__ import annotations

from kvquota_sidecar.proxy.client_side import ClientConnection
from kvquota_sidecar.proxy.service import ContextT


class TlsClientConnection(ClientConnection[ContextT]):
    """It has no halves, an end is the end of both."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False
