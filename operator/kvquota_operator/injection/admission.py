"""The protocol of admission: an AdmissionReview in, an AdmissionReview out.

Decides how an outcome is said to the API server. Pure. Invariants:

1. The answer carries the uid of the question, whatever the outcome.
2. A pod that is not changed has no patch.
3. What passes by itself is refused in the words by which the clients of Kubernetes wait and try again (ten times).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvquota_operator.injection.outcomes import Outcome, Refused
from kvquota_operator.injection.patching import patch

API_VERSION: Final = "admission.k8s.io/v1"
MAX_WARNING: Final = 250  # characters; longer ones are cut by the API server, and may push out others
REFUSED_STATUS: Final = 422  # the pod is understood, and cannot be as it is
NOT_YET_STATUS: Final = 429  # it can be in a moment; as Kubernetes answers to an eviction that has to wait


class ReviewError(ValueError):
    """What came is no admission review of a pod; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Review:
    """`uid`: of the question. `namespace`: of the pod, which does not say it itself."""

    uid: str
    namespace: str
    pod: Mapping[str, Any]

    @property
    def config_map(self) -> str:
        """A name for the pod's ConfigMap: the pod has no name and no uid yet, and the question has one that is random
        and that nobody else sees."""
        return f"kvq-{hashlib.sha256(f'{self.namespace}/{self.uid}'.encode()).hexdigest()[:32]}"


def read_review(body: object) -> Review:
    """Raises ReviewError."""
    request = body.get("request") if isinstance(body, Mapping) else None
    if not isinstance(request, Mapping) or not isinstance(request.get("uid"), str):
        raise ReviewError("no AdmissionReview with a request")
    pod = request.get("object")
    if not isinstance(pod, Mapping) or not {"metadata", "spec"} <= pod.keys():
        raise ReviewError("the request has no pod")
    return Review(request["uid"], str(request.get("namespace") or "default"), pod)


def answer(review: Review, outcome: Outcome) -> dict[str, Any]:
    """The AdmissionReview that is sent back."""
    response: dict[str, Any] = {"uid": review.uid, "allowed": not isinstance(outcome, Refused)}
    if isinstance(outcome, Refused):
        response["status"] = _status(outcome)
        return _review(response)
    operations = list(patch(review.pod, outcome.pod))
    if operations:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(operations).encode()).decode()}
    if outcome.warnings:
        response["warnings"] = [warning[:MAX_WARNING] for warning in outcome.warnings]
    return _review(response)


def _status(refused: Refused) -> dict[str, Any]:
    if refused.retry_seconds is None:
        return {"code": REFUSED_STATUS, "reason": "Invalid", "message": refused.message}
    details = {"retryAfterSeconds": refused.retry_seconds}
    return {"code": NOT_YET_STATUS, "reason": "TooManyRequests", "message": refused.message, "details": details}


def _review(response: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}
