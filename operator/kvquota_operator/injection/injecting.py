"""A pod under quota: what is added to it and what is changed.

Decides the whole changed pod. Pure: pods are plain dicts and are not changed in place. Invariants:

1. Injecting twice is injecting once, also where somebody changed the pod in between.
2. A pod comes out whole or not at all: it is changed in every place, or it is refused with a sentence, or left alone.
3. What the pod says of anything else than the engine's address, its partition, its probes and its end stays as it is.
4. A sidecar that somebody wrote by hand is left alone, and so is all of its pod.
5. A copy of an injected pod under another name does not get that pod's ConfigMap.

It does not know whether the pod will be admitted by others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvquota_api.meta import CONTAINER_NAME, PLAN_ANNOTATION
from kvquota_api.model_pool import ModelPool
from kvquota_operator.injection import sidecar
from kvquota_operator.injection.asking import INJECTED_ANNOTATION, INJECTED_AS_ANNOTATION, NO_PLAN
from kvquota_operator.injection.commands import option, words_of
from kvquota_operator.injection.flags import engine_flags, moved_to, not_settable
from kvquota_operator.injection.outcomes import Allowed, Outcome, Refused, SidecarImage, Target
from kvquota_operator.injection.probing import led_elsewhere
from kvquota_operator.injection.refusing import Case, declared_ports, engine_container, refusal
from kvquota_operator.injection.sidecar import Ports
from kvquota_operator.injection.tls import WITHOUT, tls_files
from kvquota_operator.reading.pods import has_sidecar, mounted_config

ENGINE_PORT: Final = 18000  # where an engine goes; the next free one where the pod has that already
DEFAULT_GRACE_SECONDS: Final = 30  # of a pod that does not say, by Kubernetes
ANY_IPV4: Final = "0.0.0.0"  # noqa: S104 - the sidecar takes the place of an engine that is open to the cluster


def inject(pod: Mapping[str, Any], target: Target, image: SidecarImage, config_map: str) -> Outcome:
    """`config_map`: a name of the operator's form that no other pod mounts; one that is the pod's own already stays."""
    if has_sidecar(pod["spec"]) and INJECTED_ANNOTATION not in _annotations(pod["metadata"]):
        return Allowed(pod, (f"the pod has a container {CONTAINER_NAME} already, so it is left as it is",))
    found = engine_container(pod["spec"], target.pool)
    if isinstance(found, str):
        return Refused(found)
    case = _case(pod["spec"], target, found)
    why = refusal(case)
    if why is not None:
        return Refused(why)
    return Allowed(_injected(pod, target, image, config_map, case), _warnings(target, case))


def _case(pod_spec: Mapping[str, Any], target: Target, container: Mapping[str, Any]) -> Case:
    spec, words, ports = target.pool.spec, words_of(container), _ports(pod_spec, target.pool)
    moved = moved_to(spec, ports.engine) if spec.sidecar.takeover == "Port" else ()
    flags = engine_flags(spec, target.kv, words) if spec.sidecar.flags == "Set" else ()
    tls = tls_files(spec, container, words)
    appended = None if moved is None else (*moved, *(WITHOUT if tls else ()), *flags)
    return Case(pod_spec, target.pool, container, words, ports, appended, tls)


def _ports(pod_spec: Mapping[str, Any], pool: ModelPool) -> Ports:
    own = pool.spec.sidecar
    if own.port is not None:
        return Ports(listen=own.port, engine=pool.spec.engine.port, admin=own.admin_port)
    taken = {port for _, port in declared_ports(pod_spec)} | {own.admin_port, pool.spec.engine.port}
    engine = next(port for port in range(ENGINE_PORT, ENGINE_PORT + len(taken) + 1) if port not in taken)
    return Ports(listen=pool.spec.engine.port, engine=engine, admin=own.admin_port)


def _injected(
    pod: Mapping[str, Any], target: Target, image: SidecarImage, config_map: str, case: Case
) -> dict[str, Any]:
    spec = dict(pod["spec"])
    spec["containers"] = [_moved(each, case) if each is case.container else each for each in spec["containers"]]
    spec["initContainers"] = _with_sidecar(spec, case, image)
    own = sidecar.volumes(target.pool, _own_config_map(pod) or config_map)
    spec["volumes"] = _with_volumes(spec.get("volumes") or [], own)
    return {**pod, "metadata": _with_annotations(pod["metadata"], target), "spec": spec}


def _moved(container: Mapping[str, Any], case: Case) -> dict[str, Any]:
    args, appended = list(container.get("args") or []), list(case.appended or ())
    found = dict(container)
    if appended and args[-len(appended) :] != appended:
        found["args"] = args + appended
    if case.pool.spec.sidecar.takeover == "Port":
        found |= led_elsewhere(container, case.ports.listen, case.ports.admin)
    lifecycle = dict(container.get("lifecycle") or {})
    if not lifecycle.get("preStop"):
        found["lifecycle"] = {**lifecycle, "preStop": {"httpGet": {"path": "/drain/wait", "port": case.ports.admin}}}
    return found


def _with_sidecar(spec: Mapping[str, Any], case: Case, image: SidecarImage) -> list[Mapping[str, Any]]:
    """Last, so that the pod's own preparations come before it, and a mesh's sidecar outlives it."""
    others = list(spec.get("initContainers") or [])
    if has_sidecar(spec):
        return others
    container = sidecar.container(
        case.pool,
        image,
        case.ports,
        host=_host(case.words),
        tls=case.tls,
        grace_seconds=spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS),
        own_readiness=case.pool.spec.sidecar.takeover == "None" or not case.container.get("readinessProbe"),
    )
    return [*others, container]


def _host(words: Sequence[str]) -> str:
    """Every address, where the engine listened on those of IPv6 too."""
    return "" if ":" in (option(words, "--host") or "") else ANY_IPV4


def _with_volumes(volumes: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    names = {each["name"] for each in own}
    return [*(each for each in volumes if each["name"] not in names), *own]


def _own_config_map(pod: Mapping[str, Any]) -> str | None:
    """What the pod mounts as its config, unless it came with the manifest of a pod of another name."""
    injected_as = _annotations(pod["metadata"]).get(INJECTED_AS_ANNOTATION)
    return mounted_config(pod["spec"]) if injected_as in (None, _known_as(pod["metadata"])) else None


def _known_as(metadata: Mapping[str, Any]) -> str:
    """The name of a pod, or what it will begin with: the API server finishes it after admission."""
    return metadata.get("name") or f"{metadata.get('generateName', '')}*"


def _annotations(metadata: Mapping[str, Any]) -> Mapping[str, str]:
    return metadata.get("annotations") or {}


def _with_annotations(metadata: Mapping[str, Any], target: Target) -> dict[str, Any]:
    """What a copied pod says of another plan goes."""
    annotations = {key: value for key, value in _annotations(metadata).items() if key != PLAN_ANNOTATION}
    annotations[INJECTED_AS_ANNOTATION] = _known_as(metadata)
    annotations[INJECTED_ANNOTATION] = f"{target.pool.metadata.name}/{target.plan_hash or NO_PLAN}"
    if target.plan_hash:
        annotations[PLAN_ANNOTATION] = target.plan_hash
    return {**metadata, "annotations": annotations}


def _warnings(target: Target, case: Case) -> tuple[str, ...]:
    spec = target.pool.spec
    found = [not_settable(spec, target.kv)]
    flags = engine_flags(spec, target.kv, case.words)
    if spec.sidecar.flags == "Advise" and flags:
        found.append(f"ModelPool {target.pool.metadata.name} only advises arguments: add {' '.join(flags)}")
    if target.kv is None:
        found.append(
            f"ModelPool {target.pool.metadata.name} has no plan, so the engine takes what it takes: see its condition"
            " PlanValid"
        )
    return tuple(each for each in found if each is not None)
