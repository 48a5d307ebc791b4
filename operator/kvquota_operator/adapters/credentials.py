"""How to reach the API server: the pod's service account, or a kubeconfig file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import kopf
import yaml
from kubernetes.aio import config
from kubernetes.aio.client import Configuration

_GIVE: Final = "give --kubeconfig a file that kubectl works with"


class CredentialsError(RuntimeError):
    """There is no way to the API server; the text says what to give."""


async def load(kubeconfig: Path | None) -> Configuration:
    """Address and credentials, read anew with every call. Raises CredentialsError."""
    configuration = Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)
        else:
            _check(kubeconfig)
            await config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)
    except config.ConfigException as error:
        advice = "run inside a pod with a service account, or give --kubeconfig FILE"
        raise CredentialsError(f"no way to the API server ({error}): {advice}") from error
    configuration.connection_pool_maxsize = 0  # every watch holds a connection; requests are bounded by `Api`
    return configuration


def _check(kubeconfig: Path) -> None:
    """Raises CredentialsError where the file has not the shape of a kubeconfig, which the client takes on trust."""
    try:
        content = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise CredentialsError(
            f"{kubeconfig} cannot be read as a kubeconfig ({_first_line(error)}): {_GIVE}"
        ) from error
    parts = ("clusters", "contexts", "users")
    if not isinstance(content, dict) or not all(isinstance(content.get(part), list) for part in parts):
        raise CredentialsError(f"{kubeconfig} is no kubeconfig (it has no lists {', '.join(parts)}): {_GIVE}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


async def bearer(configuration: Configuration) -> tuple[str, str] | None:
    """Scheme and token for the Authorization header; None where the client proves itself by its certificate."""
    header = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    if not header:
        return None
    scheme, _, token = str(header).partition(" ")
    return (scheme, token) if token else ("Bearer", scheme)


async def connection(kubeconfig: Path | None) -> kopf.ConnectionInfo:
    """The same for kopf, which has a client of its own."""
    configuration = await load(kubeconfig)
    scheme, token = await bearer(configuration) or (None, None)
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme,
        token=token,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )
