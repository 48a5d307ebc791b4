"""Which pods cannot be put under quota as they are.

Decides by a chain of rules, of which the first that has something to say is the answer. Pure. Invariants:

1. Every sentence names what is in the way and what to change, in the pod or in its pool.
2. What would start and then not work is refused: an engine that is not moved answers past the quota, or never.

It does not know what an image runs by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvquota_api.meta import CONTAINER_NAME, INJECT_LABEL
from kvquota_api.model_pool import ModelPool
from kvquota_operator.injection.commands import ends_options, has_option, is_shell_string, option
from kvquota_operator.injection.sidecar import Ports
from kvquota_operator.injection.tls import TlsFiles, stated_tls

_SOCKET: Final = "--uds"
_PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")
_COPIES: Final = ("--data-parallel-size-local", "-dpl", "--data-parallel-size", "-dp")  # the first given one says it
_ONE_COPY: Final = ("--data-parallel-rank", "-dpn")  # the pod is one of the copies, others are other pods


@dataclass(frozen=True, slots=True)
class Case:
    """A pod that asks, its pool, and the engine's container with its words.

    `appended`: the arguments that it is to get, None where nobody knows them. `tls`: what the sidecar takes over.
    """

    pod_spec: Mapping[str, Any]
    pool: ModelPool
    container: Mapping[str, Any]
    words: Sequence[str]
    ports: Ports
    appended: Sequence[str] | None
    tls: TlsFiles | None = None

    @property
    def field(self) -> str:
        """What a sentence calls the engine's container."""
        return f"container {self.container['name']}"


def engine_container(pod_spec: Mapping[str, Any], pool: ModelPool) -> Mapping[str, Any] | str:
    """The container that the pool calls its engine, or why it cannot be told."""
    containers: Sequence[Mapping[str, Any]] = pod_spec.get("containers") or ()
    if not containers:
        return "the pod has no container: give it the one of the engine"
    names, wanted = [each["name"] for each in containers], pool.spec.engine.container
    if wanted is None and len(names) > 1:
        return (
            f"the pod has the containers {', '.join(names)}: say in spec.engine.container of ModelPool"
            f" {pool.metadata.name} which is the engine"
        )
    if wanted is not None and wanted not in names:
        return (
            f"the pod has no container {wanted}, it has {', '.join(names)}: correct spec.engine.container of ModelPool"
            f" {pool.metadata.name}, or rename the container"
        )
    return next(each for each in containers if wanted in (None, each["name"]))


def refusal(case: Case) -> str | None:
    """Why the pod cannot be injected; None where it can."""
    found = (rule(case) for rule in _RULES)
    return next((sentence for sentence in found if sentence is not None), None)


def _host_network(case: Case) -> str | None:
    if not case.pod_spec.get("hostNetwork"):
        return None
    return (
        "the pod uses the node's network (hostNetwork), where every program of the node reaches the engine past the"
        " sidecar: take hostNetwork out of the pod"
    )


def _port_taken(case: Case) -> str | None:
    wanted = {case.ports.admin: "spec.sidecar.adminPort"}
    if case.pool.spec.sidecar.takeover == "None":
        wanted[case.ports.listen] = "spec.sidecar.port"
    for name, port in declared_ports(case.pod_spec):
        if port in wanted and name != CONTAINER_NAME:
            return (
                f"container {name} has the port {port}, which the sidecar is to have: change {wanted[port]} of"
                f" ModelPool {case.pool.metadata.name}"
            )
    return None


def _unknown_engine(case: Case) -> str | None:
    if case.appended is not None:
        return None
    return (
        f"ModelPool {case.pool.metadata.name} does not say which kind of engine this is (engine.type OpenAI), so it"
        " cannot be moved off its port: set spec.sidecar.takeover None and spec.sidecar.port, and send clients there"
    )


def _shell(case: Case) -> str | None:
    if not case.appended or not is_shell_string(case.words):
        return None
    return (
        f"{case.field} runs a string in a shell, which would lose the arguments that kvquota appends: write command and"
        ' args as a list (command: [vllm, serve], args: [...]), or let the string end in "$@" and follow it with the'
        " word sh"
    )


def _options_end(case: Case) -> str | None:
    if not case.appended or not ends_options(case.words):
        return None
    return (
        f"{case.field} has a bare -- among its arguments, and the engine would not read what kvquota appends behind it"
        " as options: take it out"
    )


def _no_words(case: Case) -> str | None:
    if not case.appended or case.words:
        return None
    return (
        f"{case.field} has neither command nor args, so arguments cannot be added without replacing those of the image:"
        " write into args what the image runs with"
    )


def _unix_socket(case: Case) -> str | None:
    if not has_option(case.words, _SOCKET):
        return None
    return f"{case.field} serves on a unix socket ({_SOCKET}): let it serve on a port, and take {_SOCKET} out"


def _serves_nothing(case: Case) -> str | None:
    if case.pool.spec.engine.type != "vLLM":
        return None
    stated = "--headless" if has_option(case.words, "--headless") else None
    if option(case.words, "--api-server-count") == "0":
        stated = "--api-server-count 0"
    if stated is None:
        return None
    return (
        f"{case.field} answers no requests ({stated}), so there is nothing to put under quota: take the label"
        f" {INJECT_LABEL} from this pod and keep it on the one that answers, or take {stated} out"
    )


def _other_copies(case: Case) -> str | None:
    """Each copy has a KV pool of its own, so their number decides what a tenant may hold of a pod."""
    planned = case.pool.spec.engine.parallelism.data
    given = [(name, option(case.words, name)) for name in _COPIES]
    name, stated = next(((name, value) for name, value in given if value is not None), ("", str(planned)))
    if case.pool.spec.engine.type != "vLLM" or any(has_option(case.words, each) for each in _ONE_COPY):
        return None
    if stated == str(planned):
        return None
    return (
        f"{case.field} runs with {name} {stated}, and ModelPool {case.pool.metadata.name} says {planned}: make"
        " spec.engine.parallelism.data the same"
    )


def _grpc_probe(case: Case) -> str | None:
    if case.pool.spec.sidecar.takeover != "Port":
        return None
    for name in _PROBES:
        if ((case.container.get(name) or {}).get("grpc") or {}).get("port") == case.ports.listen:
            return (
                f"{case.field} has a gRPC {name} of port {case.ports.listen}, where the sidecar answers HTTP: make it"
                " an httpGet of /health"
            )
    return None


def _tls(case: Case) -> str | None:
    given = stated_tls(case.words)
    if not given or case.tls is not None:
        return None
    return (
        f"{case.field} serves TLS ({', '.join(given)}) in a way that the sidecar cannot take over: it does so for vLLM"
        " with --ssl-certfile and --ssl-keyfile on a volume of the container, and without --ssl-ca-certs. Change that,"
        " or end TLS before the pod"
    )


def _other_port(case: Case) -> str | None:
    stated, port = option(case.words, "--port"), case.pool.spec.engine.port
    if stated is None or stated in (str(port), str(case.ports.engine)):
        return None
    return (
        f"{case.field} serves on port {stated}, and ModelPool {case.pool.metadata.name} says {port}: make"
        " spec.engine.port and --port the same, 1024 or higher"
    )


def declared_ports(pod_spec: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
    """Container and number of every port that a pod declares."""
    containers = [*(pod_spec.get("containers") or []), *(pod_spec.get("initContainers") or [])]
    return [(each["name"], port["containerPort"]) for each in containers for port in each.get("ports") or []]


_RULES: Final[tuple[Callable[[Case], str | None], ...]] = (
    _host_network,
    _unknown_engine,
    _shell,
    _options_end,
    _no_words,
    _unix_socket,
    _serves_nothing,
    _other_copies,
    _grpc_probe,
    _tls,
    _other_port,
    _port_taken,
)
