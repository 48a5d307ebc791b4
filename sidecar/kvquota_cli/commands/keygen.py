"""`kvquota keygen`: a new API key, alone or as a Secret."""

from __future__ import annotations

import argparse
import secrets

from kvquota_cli import keys
from kvquota_cli.errors import CliError, ExitCode


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print the key or the Secret. Raises CliError for a name that Kubernetes would refuse."""
    if arguments.quota is not None and arguments.secret is None:
        raise CliError("--quota needs --secret: a TenantQuota names a Secret, so say what the Secret is called")
    key = keys.new_key(secrets.token_bytes)
    print(key if arguments.secret is None else _manifest(arguments, key), flush=True)
    return ExitCode.OK


def _manifest(arguments: argparse.Namespace, key: str) -> str:
    try:
        return keys.secret_manifest(key, arguments.secret, arguments.namespace, arguments.key, arguments.quota)
    except keys.InvalidNameError as problem:
        raise CliError(str(problem)) from problem
