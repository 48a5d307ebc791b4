"""Call helm so that it reads nothing of the user's: no repositories, no plugins, no kubeconfig."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from testcluster.programs import Program

INSTALL_TIMEOUT_S = 300.0
"""Seconds for one call: `--wait` returns when the pods are ready, which takes minutes only if they never are."""


@dataclass(frozen=True, slots=True)
class Helm:
    """The helm program with a home directory of its own."""

    path: Path
    home: Path

    def __call__(
        self,
        *args: str | Path,
        kubeconfig: Path | None = None,
        input: str | bytes | None = None,  # noqa: A002  the name subprocess gives it
    ) -> str:
        """Standard output of one call. Raises `ProgramError`; without `kubeconfig` no cluster can be reached."""
        program = Program(self.path, self._environ(kubeconfig or self.home / "no-kubeconfig"))
        return program(*args, input=input, timeout_s=INSTALL_TIMEOUT_S)

    def _environ(self, kubeconfig: Path) -> Mapping[str, str]:
        return {
            "HELM_CACHE_HOME": str(self.home / "cache"),
            "HELM_CONFIG_HOME": str(self.home / "config"),
            "HELM_DATA_HOME": str(self.home / "data"),
            "KUBECONFIG": str(kubeconfig),
        }
