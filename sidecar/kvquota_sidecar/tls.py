"""TLS on the traffic port: one certificate, replaced while connections go on.

Invariants:

1. A certificate comes into force whole, with the key that belongs to it, or not at all; the last good one stays.
2. Connections keep what they began with.
3. A client that has not finished its handshake within HANDSHAKE_SECONDS, or speaks no TLS, is closed. Handshakes that
   came to nothing are counted and told of together: the loop tells nobody. Who only stays silent is not counted.
"""

from __future__ import annotations

import ssl
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_PLAINTEXT: Final = frozenset({"HTTP_REQUEST", "HTTPS_PROXY_REQUEST"})  # what OpenSSL calls it
NEWS_SECONDS: Final = 60.0  # between two log lines about failed handshakes: a wrong probe fails once a second
HANDSHAKE_SECONDS: Final = 10.0  # as long as a head may take
SHUTDOWN_SECONDS: Final = 2.0  # for the other side's last word, when everything has been sent


class CertificateError(ValueError):
    """A certificate or key that cannot be used; the text is a sentence that names the files."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """`certificate`: PEM, the server's own first and then those of its issuers. `key`: PEM, without a passphrase."""

    certificate: Path
    key: Path

    def load(self) -> ssl.SSLContext:
        """What they hold. Raises CertificateError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
        except (OSError, ValueError) as error:
            said = str(error) or type(error).__name__
            raise CertificateError(
                f"cannot use the certificate {self.certificate} with the key {self.key}: {said}"
            ) from error
        return context


class Certificate:
    """The certificate in force."""

    def __init__(self, files: CertificateFiles) -> None:
        """Raises CertificateError."""
        self._files = files
        self._current = files.load()
        self.context = files.load()  # of the port: it only chooses the current one, for every client
        self.context.sni_callback = self._choose
        self.context.sslobject_class = self._counted()
        self.failed: Counter[str] = Counter()  # handshakes, by why: plaintext or other
        self._told = 0
        self._next_news_at = 0.0

    def reload(self) -> None:
        """Take what the files hold now, for new connections. Raises CertificateError; the last good one stays then."""
        self._current = self._files.load()

    def news(self, now: float) -> dict[str, int] | None:
        """The failed handshakes since the start, where they are more than were told of and it is time to say so."""
        if now < self._next_news_at or self.failed.total() == self._told:
            return None
        self._next_news_at, self._told = now + NEWS_SECONDS, self.failed.total()
        return dict(self.failed)

    def _counted(self) -> type[ssl.SSLObject]:
        """A connection's TLS, which says where its handshake failed."""
        failed = self._failed

        class Counted(ssl.SSLObject):
            def do_handshake(self) -> None:
                try:
                    super().do_handshake()
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    raise
                except ssl.SSLError as error:
                    failed(error)
                    raise

        return Counted

    def _failed(self, error: ssl.SSLError) -> None:
        self.failed["plaintext" if error.reason in _PLAINTEXT else "other"] += 1

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current


def options(certificate: Certificate) -> dict[str, Any]:
    """What a loop's `connect_accepted_socket` is told."""
    return {
        "ssl": certificate.context,
        "ssl_handshake_timeout": HANDSHAKE_SECONDS,
        "ssl_shutdown_timeout": SHUTDOWN_SECONDS,
    }


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase; store it without one")
