"""Make a throw-away certificate authority, a server certificate and a signing key with the `openssl` program."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testcluster.errors import PartError
from testcluster.programs import run

VALID_DAYS = 30
"""Days: longer than any test, short enough to be worthless if a copy is left behind."""

_VALID = ("-days", str(VALID_DAYS))
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class OpensslMissingError(PartError):
    """There is no `openssl` on PATH."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files of one API server: authority, certificate and key, and the key that signs service account tokens."""

    ca: Path
    server: Path
    server_key: Path
    service_account_key: Path


def make(directory: Path, *, names: Sequence[str]) -> Certificates:
    """Write the files into `directory`; `names` are subject alternative names such as `DNS:localhost`."""
    if shutil.which("openssl") is None:
        raise OpensslMissingError("no `openssl` on PATH; install it (Debian: apt-get install openssl)")
    directory.mkdir(parents=True, exist_ok=True)
    files = Certificates(
        directory / "ca.crt", directory / "server.crt", directory / "server.key", directory / "service-account.key"
    )
    _authority(files.ca, directory / "ca.key")
    _server(files, directory / "ca.key", names)
    run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", files.service_account_key])
    return files


def _authority(certificate: Path, key: Path) -> None:
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    files = ("-keyout", key, "-out", certificate)
    run(["openssl", "req", "-x509", *_NEW_KEY, *_VALID, "-subj", "/CN=test-cluster-ca", *usage, *files])


def _server(files: Certificates, authority_key: Path, names: Sequence[str]) -> None:
    request = files.server.with_suffix(".csr")
    extensions = files.server.with_suffix(".ext")
    extensions.write_text(
        f"subjectAltName={','.join(names)}\nauthorityKeyIdentifier=keyid\nextendedKeyUsage=serverAuth\n"
    )
    run(["openssl", "req", *_NEW_KEY, "-subj", "/CN=kube-apiserver", "-keyout", files.server_key, "-out", request])
    authority = ("-CA", files.ca, "-CAkey", authority_key, "-CAcreateserial")
    run(["openssl", "x509", "-req", *_VALID, *authority, "-in", request, "-extfile", extensions, "-out", files.server])
