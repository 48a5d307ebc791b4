"""How a test reaches an API server, whichever way it was started."""

import base64
import json
import ssl
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testcluster.programs import Program

READYZ_TIMEOUT_S = 2.0
"""Seconds one request to /readyz may take; a server that is starting refuses at once or answers in milliseconds."""

KUBECTL_TIMEOUT_S = 600.0
"""Seconds for one kubectl call: longer than any `--timeout` of a `kubectl wait`, whose message says more."""


@dataclass(frozen=True, slots=True)
class Access:
    """Address and credentials as `system:masters`, and a kubeconfig file that says the same."""

    url: str
    token: str
    ca: Path
    kubeconfig: Path
    kubectl_path: Path

    def kubectl(self, *args: str | Path, input: str | bytes | None = None) -> str:  # noqa: A002
        """Standard output of one kubectl call. Raises `ProgramError`."""
        program = Program(self.kubectl_path, {"KUBECACHEDIR": str(self.kubeconfig.parent / "kubectl-cache")})
        return program("--kubeconfig", self.kubeconfig, *args, input=input, timeout_s=KUBECTL_TIMEOUT_S)

    def ready(self) -> bool:
        """Whether the API server says that it is ready, now."""
        request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": f"Bearer {self.token}"})
        context = ssl.create_default_context(cafile=str(self.ca))
        direct = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with direct.open(request, timeout=READYZ_TIMEOUT_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def write_tokens(path: Path, lines: Sequence[str]) -> None:
    """Write the API server's token file, of lines such as `secret,name,id,group`, for nobody else to read."""
    path.touch(mode=0o600)
    path.write_text("".join(f"{line}\n" for line in lines))


def write_kubeconfig(path: Path, *, url: str, ca: Path, token: str) -> None:
    """Write a kubeconfig with one context; the authority is embedded, so the file works from anywhere."""
    authority = base64.b64encode(ca.read_bytes()).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority-data": authority}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=1))
