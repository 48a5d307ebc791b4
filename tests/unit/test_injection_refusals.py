"""Pods that cannot be put under quota, and what they are told."""

import pytest

from injection_builders import Pod, engine, pod, refused


@pytest.mark.parametrize(
    ("given", "changes", "says"),
    [
        pytest.param(
            pod(hostNetwork=True),
            {},
            "the pod uses the node's network (hostNetwork), where every program of the node reaches the engine past the"
            " sidecar: take hostNetwork out of the pod",
            id="the node's network",
        ),
        pytest.param(
            pod(engine(name="main"), {"name": "router", "image": "r"}),
            {},
            "the pod has no container vllm, it has main, router: correct spec.engine.container of ModelPool llama-8b,"
            " or rename the container",
            id="no container of the name that the pool says",
        ),
        pytest.param(
            pod(containers=None),
            {"engine__container": None},
            "the pod has no container: give it the one of the engine",
            id="no container at all",
        ),
        pytest.param(
            pod(engine(), {"name": "router", "image": "r"}),
            {"engine__container": None},
            "the pod has the containers vllm, router: say in spec.engine.container of ModelPool llama-8b which is the"
            " engine",
            id="two containers and a pool that says none",
        ),
        pytest.param(
            pod(engine(command=["/bin/sh", "-c"], args=["vllm serve m --port 8000"])),
            {},
            "container vllm runs a string in a shell, which would lose the arguments that kvquota appends: write"
            ' command and args as a list (command: [vllm, serve], args: [...]), or let the string end in "$@" and'
            " follow it with the word sh",
            id="a shell string",
        ),
        pytest.param(
            pod(engine(args=None)),
            {},
            "container vllm has neither command nor args, so arguments cannot be added without replacing those of the"
            " image: write into args what the image runs with",
            id="an image that runs by itself",
        ),
        pytest.param(
            pod(engine(args=["--uds", "/tmp/vllm.sock"])),
            {},
            "container vllm serves on a unix socket (--uds): let it serve on a port, and take --uds out",
            id="a unix socket",
        ),
        pytest.param(
            pod(engine(args=["--ssl-certfile=/tls.crt", "--ssl-keyfile=/tls.key"])),
            {},
            "container vllm serves TLS (--ssl-certfile, --ssl-keyfile) in a way that the sidecar cannot take over: it"
            " does so for vLLM with --ssl-certfile and --ssl-keyfile on a volume of the container, and without"
            " --ssl-ca-certs. Change that, or end TLS before the pod",
            id="TLS with files of the image",
        ),
        pytest.param(
            pod(engine(args=["--port", "80"])),
            {},
            "container vllm serves on port 80, and ModelPool llama-8b says 8000: make spec.engine.port and --port the"
            " same, 1024 or higher",
            id="another port, below 1024",
        ),
        pytest.param(
            pod(engine(), {"name": "metrics", "image": "m", "ports": [{"containerPort": 9600}]}),
            {},
            "container metrics has the port 9600, which the sidecar is to have: change spec.sidecar.adminPort of"
            " ModelPool llama-8b",
            id="the admin port is taken",
        ),
        pytest.param(
            pod(engine(ports=[{"containerPort": 8080}])),
            {"sidecar__takeover": "None", "sidecar__port": 8080},
            "container vllm has the port 8080, which the sidecar is to have: change spec.sidecar.port of ModelPool"
            " llama-8b",
            id="the sidecar's port is taken, without a takeover",
        ),
        pytest.param(
            pod(),
            {"engine__type": "OpenAI", "engine__plugin": "Off"},
            "ModelPool llama-8b does not say which kind of engine this is (engine.type OpenAI), so it cannot be moved"
            " off its port: set spec.sidecar.takeover None and spec.sidecar.port, and send clients there",
            id="an engine of which nothing is known",
        ),
    ],
)
def test_a_pod_that_cannot_be_put_under_quota_is_refused_with_what_to_do(given: Pod, changes: Pod, says: str) -> None:
    assert refused(given, **changes) == says
