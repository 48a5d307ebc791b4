"""Names that both programs, the manifests and the documents share.

Decides the API group, the names of labels, annotations, containers, ports and keys. Pure, and free of pydantic: the
sidecar, which starts in every pod, reads it.
"""

from __future__ import annotations

from typing import Final

GROUP: Final = "kvquota.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CATEGORY: Final = "kvquota"

POOL_LABEL: Final = f"{GROUP}/pool"
INJECT_LABEL: Final = f"{GROUP}/inject"  # of a pod: "true" asks for the sidecar
PLAN_ANNOTATION: Final = f"{GROUP}/plan"  # of a pod: the hash of the plan that its engine was started with
REVIEWED_ANNOTATION: Final = f"{GROUP}/reviewed-plan"  # of a pool: the hash of the plan that its quotas were read for
API_KEY_SECRET_TYPE: Final = f"{GROUP}/api-key"
POOL_SECRET_TYPE: Final = f"{GROUP}/pool"

CONTAINER_NAME: Final = "kvquota"  # of the sidecar; a pod is governed when one of its containers has it
ADMIN_PORT: Final = 9600  # of the sidecar: sync, health, metrics

CONFIG_VOLUME: Final = "kvquota-config"  # of a pod; its ConfigMap is the durable copy of the pod's config
CONFIG_KEY: Final = "config.json"  # of the ConfigMap of a pod
TOKEN_KEY: Final = "token"  # noqa: S105 - the name of a key in the pool's Secret, as are the next two
PEPPER_KEY: Final = "pepper"
IDENTITY_KEY: Final = "identity.json"

DNS_LABEL_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
SECRET_KEY_PATTERN: Final = r"^[-._a-zA-Z0-9]+$"  # noqa: S105 - what Kubernetes allows as a key of a Secret's data
