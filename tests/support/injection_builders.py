"""Builders for tests of injection: a pod that asks, the pool it belongs to, and what becomes of it."""

from typing import Any

from kvquota_api.model_pool import ModelPool
from kvquota_operator.injection.injecting import inject
from kvquota_operator.injection.outcomes import Allowed, Outcome, Refused, SidecarImage, Target
from kvquota_operator.injection.planned import target_of
from reconcile_builders import pool as example_pool

IMAGE = SidecarImage("kvquota/sidecar:0.1.0")
CONFIG_MAP = "kvq-00112233445566778899aabbccddeeff"
MOVED = ["--host", "127.0.0.1", "--port", "18000"]
FLAGS = [
    *("--kv-cache-memory-bytes", "38654705664", "--block-size", "16", "--max-num-seqs", "256"),
    *("--max-num-batched-tokens", "8192", "--max-model-len", "32768"),
    *("--scheduling-policy", "priority", "--enable-prompt-tokens-details"),
]
"""What the example pool adds to vLLM."""

Pod = dict[str, Any]


def pool(**changes: Any) -> ModelPool:
    """The example pool; `__` stands for a dot in the path of a field of its spec."""
    return example_pool(**changes)


def target(**changes: Any) -> Target:
    return target_of(pool(**changes), None, ())


def engine(**changes: Any) -> Pod:
    """The engine's container."""
    return {"name": "vllm", "image": "vllm", "args": ["--model", "m", "--port", "8000"], **changes}


def pod(*containers: Pod, annotations: dict[str, str] | None = None, **spec: Any) -> Pod:
    metadata: Pod = {"generateName": "llama-8b-", "labels": {"app": "llama-8b", "kvquota.dev/inject": "true"}}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": {"containers": list(containers) or [engine()], **spec}}


def outcome(given: Pod, **changes: Any) -> Outcome:
    """What becomes of a pod of the example pool, with fields of the pool's spec changed."""
    return inject(given, target(**changes), IMAGE, CONFIG_MAP)


def allowed(given: Pod, **changes: Any) -> Allowed:
    found = outcome(given, **changes)
    assert isinstance(found, Allowed), found
    return found


def refused(given: Pod, **changes: Any) -> str:
    found = outcome(given, **changes)
    assert isinstance(found, Refused), found
    return found.message


def engine_of(found: Allowed, name: str = "vllm") -> Pod:
    return next(dict(each) for each in found.pod["spec"]["containers"] if each["name"] == name)


def sidecar_of(found: Allowed) -> Pod:
    return next(dict(each) for each in found.pod["spec"]["initContainers"] if each["name"] == "kvquota")
