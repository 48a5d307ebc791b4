"""An API server that has the CRDs of this repository, for tests that hold the contract against it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from testcluster.apiserver import ApiServer
from testcluster.cluster import ESTABLISHED
from testcluster.programs import ProgramError

CRDS: Final = Path(__file__).parents[2] / "crds"
NAMES: Final = {"ModelPool": "modelpools.kvquota.dev", "TenantQuota": "tenantquotas.kvquota.dev"}
"""Kind -> name of its CustomResourceDefinition."""


@contextmanager
def with_crds(apiserver: ApiServer, namespace: str) -> Iterator[ApiServer]:
    """The API server with the CRDs, applied as a user does, and a namespace whose objects are removed at the end."""
    apiserver.kubectl("apply", "-f", str(CRDS))
    apiserver.kubectl("wait", ESTABLISHED, "--timeout=60s", "crd", *NAMES.values())
    apiserver.create_namespace(namespace)
    yield apiserver
    apiserver.kubectl("delete", ",".join(NAMES.values()), "--all", "-n", namespace)


def said(apiserver: ApiServer, *arguments: str, given: str) -> str:
    """What kubectl prints for what it is given on its input, whether it accepts it or not."""
    try:
        return apiserver.kubectl(*arguments, "-f", "-", input=given)
    except ProgramError as refused:
        return refused.output
