"""Where the probes of an engine go once another program stands on its port.

Decides which probes are led elsewhere. Pure. Invariants:

1. Startup and liveness ask after the engine itself, through the sidecar's admin port, by number: the kubelet cannot
   look up a port that another container names.
2. Readiness passes through the sidecar, so that a pod that leaves is taken out of its Services.
3. Periods and thresholds stay as they are, and so does a probe that asks another port or runs a program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ENGINE_HEALTH: Final = "/engine/health"
READY: Final = "/readyz"
_PASSED_THROUGH: Final = frozenset({"/health"})  # what the sidecar answers by itself on the engine's port


def led_elsewhere(container: Mapping[str, Any], port: int, admin: int) -> dict[str, Any]:
    """The probes of a container that served on `port`, as far as they change."""
    found = {name: container[name] for name in ("startupProbe", "livenessProbe") if container.get(name)}
    moved = {
        name: _asking(probe, ENGINE_HEALTH, admin) for name, probe in found.items() if _asks(container, probe, port)
    }
    readiness = container.get("readinessProbe")
    if readiness and _asks(container, readiness, port) and not _is_plain_health(readiness):
        moved["readinessProbe"] = _asking(readiness, READY, admin)
    return moved


def _asking(probe: Mapping[str, Any], path: str, admin: int) -> dict[str, Any]:
    rest = {key: value for key, value in probe.items() if key not in ("httpGet", "tcpSocket")}
    return {"httpGet": {"path": path, "port": admin}, **rest}


def _asks(container: Mapping[str, Any], probe: Mapping[str, Any], port: int) -> bool:
    action = probe.get("httpGet") or probe.get("tcpSocket") or {}
    return action.get("port") in {port, str(port), *_names(container, port)}


def _names(container: Mapping[str, Any], port: int) -> set[str]:
    return {
        each["name"] for each in container.get("ports") or [] if each.get("containerPort") == port and "name" in each
    }


def _is_plain_health(probe: Mapping[str, Any]) -> bool:
    return (probe.get("httpGet") or {}).get("path") in _PASSED_THROUGH
