"""A certificate authority of one webhook: who is believed to be it, and who is next.

Everything here is about bytes and times that are given: nothing is read, written or waited for. Invariants:

1. A certificate that the newest authority signed is believed by everybody who has the bundle, from the moment that the
   authority is in the bundle until it expires.
2. An authority is followed by another while a third of its time is left, and stays in the bundle until it has expired:
   what it signed goes on being believed meanwhile.
3. What cannot be read counts as not there: it is replaced.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BACKDATED: Final = timedelta(hours=1)  # clocks of API servers may be behind
_MAX_COMMON_NAME: Final = 64  # characters, by X.520


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long an authority and what it signs are good for. A third of each is left when the next one is made."""

    authority: timedelta = timedelta(days=365)
    certificate: timedelta = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Authority:
    """`bundle`: PEM, the newest certificate first; `key`: PEM, of the newest."""

    bundle: bytes
    key: bytes = field(repr=False)

    @property
    def newest(self) -> x509.Certificate:
        return x509.load_pem_x509_certificates(self.bundle)[0]


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate for a server, PEM, and its key."""

    certificate: bytes
    key: bytes = field(repr=False)


def read_authority(bundle: bytes, key: bytes) -> Authority | None:
    """What is stored; None where it is nothing, of another kind, or its key not that of its newest certificate."""
    try:
        newest = x509.load_pem_x509_certificates(bundle)[0]
        loaded = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError):
        return None
    is_ours = isinstance(loaded, ec.EllipticCurvePrivateKey) and loaded.public_key() == newest.public_key()
    return Authority(bundle, key) if is_ours else None


def is_due(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether the next one is to be made."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now > end - (end - begin) / 3


def next_authority(before: Authority | None, name: str, now: datetime, lifetimes: Lifetimes) -> Authority:
    """A new one, with those of `before` that have not expired behind it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = _builder(subject, subject, key.public_key(), now, lifetimes.authority)
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    newest = builder.add_extension(constraints, critical=True).add_extension(usage, critical=True)
    certificate = newest.sign(key, hashes.SHA256())
    old = [] if before is None else x509.load_pem_x509_certificates(before.bundle)
    living = [each for each in old if each.not_valid_after_utc > now]
    return Authority(_pem([certificate, *living]), _pem_key(key))


def sign(authority: Authority, names: Sequence[str], now: datetime, lifetimes: Lifetimes) -> Signed:
    """A certificate for a server that is reached by `names`: of hosts, or addresses."""
    issuer, key = authority.newest, ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(names[0]), issuer.subject, key.public_key(), now, lifetimes.certificate)
    builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(each) for each in names]), critical=False)
    builder = builder.add_extension(_signed_by(issuer), critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    signer = serialization.load_pem_private_key(authority.key, password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise TypeError("the key of an authority that was made here is of an elliptic curve")
    return Signed(_pem([builder.sign(signer, hashes.SHA256())]), _pem_key(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _signed_by(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """Authorities that follow each other have one name: clients tell them apart by their keys."""
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:_MAX_COMMON_NAME])])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificates: Iterable[x509.Certificate]) -> bytes:
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in certificates)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
