"""What is changed in a pod that asks, and what is left."""

from typing import Any

import pytest

from injection_builders import (
    CONFIG_MAP,
    FLAGS,
    IMAGE,
    MOVED,
    Pod,
    allowed,
    engine,
    engine_of,
    pod,
    pool,
    refused,
    sidecar_of,
    target,
)
from kvquota_api.pod_config import PodConfig
from kvquota_operator.injection.injecting import inject
from kvquota_operator.injection.outcomes import Allowed, Target
from kvquota_operator.injection.planned import target_of
from reconcile_builders import decided

NAMED = {"name": "http", "containerPort": 8000}


def get(path: str, port: int | str, **more: Any) -> Pod:
    return {"httpGet": {"path": path, "port": port}, **more}


@pytest.mark.parametrize(
    ("container", "args"),
    [
        pytest.param({"args": ["--port", "8000"]}, ["--port", "8000", *MOVED, *FLAGS], id="arguments get more of them"),
        pytest.param(
            {"command": ["vllm", "serve", "m"], "args": None},
            [*MOVED, *FLAGS],
            id="a command without arguments gets arguments",
        ),
        pytest.param(
            {"command": ["bash", "-c", 'exec vllm serve m "$@"', "sh"], "args": None},
            [*MOVED, *FLAGS],
            id="a string that hands on its arguments gets arguments",
        ),
        pytest.param(
            {"args": ["--port", "$(PORT)"]},
            ["--port", "$(PORT)", *MOVED, *FLAGS],
            id="a port in a variable is not known and counts as right",
        ),
        pytest.param(
            {"args": ["--num-gpu-blocks-override", "9"]},
            ["--num-gpu-blocks-override", "9", *MOVED, *FLAGS, "--num-gpu-blocks-override", "18432"],
            id="a number of blocks, which would win over bytes, gets the planned one behind it",
        ),
    ],
)
def test_the_engine_is_moved_and_keeps_to_its_plan(container: Pod, args: list[str]) -> None:
    assert engine_of(allowed(pod(engine(**container))))["args"] == args


def test_somebody_who_adds_arguments_in_between_gets_ours_behind_them_again() -> None:
    once = dict(allowed(pod()).pod)
    changed = {**engine_of(Allowed(once)), "args": [*engine_of(Allowed(once))["args"], "--port", "8000"]}
    again = allowed({**once, "spec": {**once["spec"], "containers": [changed]}})
    assert engine_of(again)["args"] == [*changed["args"], *MOVED, *FLAGS]
    assert again.pod["spec"]["initContainers"] == once["spec"]["initContainers"]
    assert again.pod["spec"]["volumes"] == once["spec"]["volumes"]


CERTIFICATE = ["--ssl-certfile", "/tls/tls.crt", "--ssl-keyfile=/tls/tls.key", "--enable-ssl-refresh"]


def test_the_certificate_of_an_engine_goes_with_the_port() -> None:
    mounts = [{"name": "root", "mountPath": "/"}, {"name": "tls", "mountPath": "/tls/", "subPath": "x"}]
    given = pod(engine(args=CERTIFICATE, volumeMounts=mounts))
    found = allowed(given)
    assert engine_of(found)["args"] == [*CERTIFICATE, *MOVED, "--ssl-certfile=", "--ssl-keyfile=", *FLAGS]
    assert sidecar_of(found)["args"][-4:] == ["--tls-cert", "/tls/tls.crt", "--tls-key", "/tls/tls.key"]
    assert sidecar_of(found)["volumeMounts"][3:] == [{**mounts[1], "readOnly": True}]
    assert allowed(dict(found.pod)) == found


def test_certificate_and_key_may_be_on_two_volumes() -> None:
    mounts = [{"name": "root", "mountPath": "/"}, {"name": "key", "mountPath": "/tls/tls.key"}]
    found = allowed(pod(engine(args=CERTIFICATE, volumeMounts=mounts)))
    assert sidecar_of(found)["volumeMounts"][3:] == [{**each, "readOnly": True} for each in mounts]


@pytest.mark.parametrize(
    ("args", "changes"),
    [
        pytest.param([*CERTIFICATE, "--ssl-ca-certs", "/tls/ca.crt"], {}, id="clients show certificates"),
        pytest.param(CERTIFICATE[:2], {}, id="the key is in the same file"),
        pytest.param(CERTIFICATE, {"engine__type": "SGLang", "engine__plugin": "Off"}, id="another engine"),
        pytest.param(CERTIFICATE, {"sidecar__takeover": "None", "sidecar__port": 8080}, id="the engine keeps its port"),
    ],
)
def test_tls_that_the_sidecar_cannot_take_over_is_refused(args: list[str], changes: Pod) -> None:
    given = pod(engine(args=args, volumeMounts=[{"name": "tls", "mountPath": "/tls"}]))
    assert "in a way that the sidecar cannot take over" in refused(given, **changes)


def test_flags_that_are_only_advised_are_named_and_not_set() -> None:
    found = allowed(pod(), sidecar__flags="Advise")
    assert engine_of(found)["args"] == ["--model", "m", "--port", "8000", *MOVED]
    assert found.warnings == (f"ModelPool llama-8b only advises arguments: add {' '.join(FLAGS)}",)


def test_without_a_takeover_the_engine_stays_and_the_sidecar_has_a_port_of_its_own() -> None:
    probes = {"livenessProbe": get("/health", 8000), "readinessProbe": get("/health", 8000)}
    found = allowed(pod(engine(**probes)), sidecar__takeover="None", sidecar__port=8080)
    assert {name: engine_of(found)[name] for name in probes} == probes
    assert engine_of(found)["args"] == ["--model", "m", "--port", "8000", *FLAGS]
    assert sidecar_of(found)["args"][:6] == [
        *("--listen", "0.0.0.0:8080", "--engine", "http://127.0.0.1:8000", "--admin", "0.0.0.0:9600")
    ]
    assert sidecar_of(found)["readinessProbe"] == get("/readyz", 9600, periodSeconds=5)


def test_without_a_takeover_and_with_advice_only_even_a_shell_string_is_taken() -> None:
    container = engine(command=["sh", "-c", "vllm serve m"], args=None)
    found = allowed(pod(container), sidecar__takeover="None", sidecar__port=8080, sidecar__flags="Advise")
    assert engine_of(found).get("args") is None


@pytest.mark.parametrize(
    ("probes", "become"),
    [
        pytest.param(
            {"startupProbe": get("/health", 8000, failureThreshold=60), "livenessProbe": get("/v1/models", "http")},
            {
                "startupProbe": get("/engine/health", 9600, failureThreshold=60),
                "livenessProbe": get("/engine/health", 9600),
            },
            id="startup and liveness ask after the engine, by number, with their own thresholds",
        ),
        pytest.param(
            {"livenessProbe": {"tcpSocket": {"port": "8000"}, "periodSeconds": 3}},
            {"livenessProbe": get("/engine/health", 9600, periodSeconds=3)},
            id="a look at the port asks after the engine too: the sidecar has the port always",
        ),
        pytest.param(
            {"livenessProbe": get("/health", 7000), "startupProbe": {"exec": {"command": ["true"]}}},
            {"livenessProbe": get("/health", 7000), "startupProbe": {"exec": {"command": ["true"]}}},
            id="another port and a program stay",
        ),
        pytest.param({"readinessProbe": get("/health", "http")}, {}, id="readiness passes through the sidecar"),
        pytest.param(
            {"readinessProbe": get("/v1/models", 8000, periodSeconds=9)},
            {"readinessProbe": get("/readyz", 9600, periodSeconds=9)},
            id="readiness by a route that asks for a key asks the sidecar",
        ),
        pytest.param(
            {"readinessProbe": {"tcpSocket": {"port": 8000}}},
            {"readinessProbe": get("/readyz", 9600)},
            id="readiness by the port, which the sidecar always has, asks the sidecar",
        ),
        pytest.param({"readinessProbe": get("/health", 7000)}, {}, id="readiness of another port stays"),
    ],
)
def test_probes(probes: Pod, become: Pod) -> None:
    found = engine_of(allowed(pod(engine(ports=[{"containerPort": 8000}, NAMED], **probes))))
    assert {name: found.get(name) for name in (*probes, *become)} == {**probes, **become}


@pytest.mark.parametrize(
    ("probe", "own"),
    [
        pytest.param({}, get("/readyz", 9600, periodSeconds=5), id="an engine without one leaves it to the sidecar"),
        pytest.param({"readinessProbe": get("/health", 8000)}, None, id="an engine with one has it"),
    ],
)
def test_who_says_that_the_pod_is_ready(probe: Pod, own: Pod | None) -> None:
    assert sidecar_of(allowed(pod(engine(**probe)))).get("readinessProbe") == own


@pytest.mark.parametrize(
    ("lifecycle", "become"),
    [
        pytest.param(None, {"preStop": get("/drain/wait", 9600)}, id="the engine's end waits for the drain"),
        pytest.param(
            {"postStart": {"exec": {"command": ["true"]}}},
            {"postStart": {"exec": {"command": ["true"]}}, "preStop": get("/drain/wait", 9600)},
            id="beside another hook",
        ),
        pytest.param({"preStop": {"sleep": {"seconds": 9}}}, {"preStop": {"sleep": {"seconds": 9}}}, id="own hook"),
    ],
)
def test_the_end_of_the_engine(lifecycle: Pod | None, become: Pod) -> None:
    assert engine_of(allowed(pod(engine(lifecycle=lifecycle))))["lifecycle"] == become


@pytest.mark.parametrize(
    ("grace", "drain"),
    [
        pytest.param({}, ["25", "3"], id="30 s where the pod does not say"),
        pytest.param({"terminationGracePeriodSeconds": 600}, ["595", "3"], id="ten minutes"),
        pytest.param({"terminationGracePeriodSeconds": 7}, ["2", "2"], id="short"),
        pytest.param({"terminationGracePeriodSeconds": 0}, ["1", "1"], id="none"),
    ],
)
def test_the_drain_ends_within_the_grace_period(grace: Pod, drain: list[str]) -> None:
    args = sidecar_of(allowed(pod(**grace)))["args"]
    assert [args[args.index(name) + 1] for name in ("--drain-seconds", "--lame-duck-seconds")] == drain


def test_the_engine_goes_to_the_next_port_that_nobody_declares() -> None:
    other = {"name": "proxy", "image": "p", "ports": [{"containerPort": 18000}, {"containerPort": 18001}]}
    found = allowed(pod(engine(), other))
    assert engine_of(found)["args"][4:8] == ["--host", "127.0.0.1", "--port", "18002"]
    assert engine_of(found, "proxy") == other


def test_the_sidecar_starts_last_of_what_starts_before_the_engine() -> None:
    before = {"name": "download", "image": "curl"}
    assert [each["name"] for each in allowed(pod(initContainers=[before])).pod["spec"]["initContainers"]] == [
        "download",
        "kvquota",
    ]


@pytest.mark.parametrize(
    ("volume", "mounted"),
    [
        pytest.param(
            {"configMap": {"name": "kvq-" + "a" * 32}}, "kvq-" + "a" * 32, id="one of the operator's form stays"
        ),
        pytest.param({"configMap": {"name": "mine"}}, CONFIG_MAP, id="another name is replaced"),
        pytest.param({"emptyDir": {}}, CONFIG_MAP, id="another kind of volume is replaced"),
    ],
)
def test_a_volume_of_the_name_that_is_there_already(volume: Pod, mounted: str) -> None:
    given = pod(volumes=[{"name": "kvquota-config", **volume}, {"name": "shm", "emptyDir": {}}])
    volumes = allowed(given).pod["spec"]["volumes"]
    assert [each["name"] for each in volumes] == ["shm", "kvquota-config", "kvquota-identity", "kvquota-no-credentials"]
    assert volumes[1]["configMap"] == {"name": mounted, "optional": True}


@pytest.mark.parametrize(
    ("given", "copied", "keeps"),
    [
        pytest.param({"name": "a"}, {"name": "a"}, True, id="the same pod, asked about again"),
        pytest.param({"generateName": "a-"}, {"generateName": "a-"}, True, id="the same before it has its name"),
        pytest.param({"name": "a"}, {"name": "b"}, False, id="a copy under another name"),
        pytest.param(
            {"generateName": "a-"}, {"generateName": "a-", "name": "a-x2"}, False, id="a copy of what was made"
        ),
        pytest.param({"generateName": "a-"}, {"generateName": "a-7f-"}, False, id="a template made of it"),
    ],
)
def test_a_copy_of_an_injected_pod_gets_a_config_map_of_its_own(given: Pod, copied: Pod, keeps: bool) -> None:
    labels = pod()["metadata"]["labels"]
    before, after = "kvq-" + "a" * 32, "kvq-" + "b" * 32
    once = inject({**pod(), "metadata": {**given, "labels": labels}}, target(), IMAGE, before)
    assert isinstance(once, Allowed)
    annotations = once.pod["metadata"]["annotations"]
    copy = {**once.pod, "metadata": {**copied, "labels": labels, "annotations": annotations}}
    twice = inject(copy, target(), IMAGE, after)
    assert isinstance(twice, Allowed)
    [volume] = [each for each in twice.pod["spec"]["volumes"] if each["name"] == "kvquota-config"]
    assert volume["configMap"]["name"] == (before if keeps else after)
    assert inject(twice.pod, target(), IMAGE, "kvq-" + "c" * 32) == twice


def test_a_sidecar_that_was_written_by_hand_is_left_alone_with_all_of_its_pod() -> None:
    given = pod(engine(), initContainers=[{"name": "kvquota", "image": "own"}])
    assert allowed(given) == Allowed(given, ("the pod has a container kvquota already, so it is left as it is",))


def test_a_copy_of_an_injected_pod_whose_sidecar_became_an_ordinary_container_gets_no_second_one() -> None:
    given = pod(engine(), {"name": "kvquota", "image": "own"}, annotations={"kvquota.dev/injected": "llama-8b/-"})
    assert allowed(given).pod["spec"]["initContainers"] == []


def test_annotations_say_by_which_plan() -> None:
    found = allowed(pod(annotations={"mine": "stays"}))
    plan = target().plan_hash
    assert found.pod["metadata"]["annotations"] == {
        "mine": "stays",
        "kvquota.dev/injected": f"llama-8b/{plan}",
        "kvquota.dev/injected-as": "llama-8b-*",
        "kvquota.dev/plan": plan,
    }


def durable_configs() -> tuple[PodConfig, ...]:
    """What pods of the example pool have, from when its plan was valid."""
    return decided().configs


NO_FIT = {"memory__kvPool": {"percent": 95}}
UNKNOWN = {"model__config": {"inline": {"architectures": ["Nobody"], "model_type": "nobody"}}}


def test_a_pool_that_never_had_a_plan_holds_nobody_back_and_says_so() -> None:
    found = allowed(pod(annotations={"kvquota.dev/plan": "of a pod that was copied"}), **NO_FIT)
    assert found.pod["metadata"]["annotations"] == {
        "kvquota.dev/injected": "llama-8b/-",
        "kvquota.dev/injected-as": "llama-8b-*",
    }
    assert "--kv-cache-memory-bytes" not in engine_of(found)["args"]
    assert found.warnings == (
        "ModelPool llama-8b has no plan, so the engine takes what it takes: see its condition PlanValid",
    )


def test_the_last_valid_plan_holds_for_new_pods_too() -> None:
    durable = durable_configs()
    given = target_of(pool(**NO_FIT), None, durable)
    assert given == Target(pool(**NO_FIT), durable[0].kv, target().plan_hash)
    found = inject(pod(), given, IMAGE, CONFIG_MAP)
    assert isinstance(found, Allowed)
    assert engine_of(found)["args"][4:] == [*MOVED, *FLAGS]


def test_what_engines_of_an_unknown_model_came_up_with_is_no_plan() -> None:
    given = pool(**UNKNOWN)
    assert target_of(given, None, durable_configs()) == Target(given, None, "-")
    found = allowed(pod(), **UNKNOWN).pod["metadata"]["annotations"]
    assert (found["kvquota.dev/injected"], found["kvquota.dev/plan"]) == ("llama-8b/-", "-")
