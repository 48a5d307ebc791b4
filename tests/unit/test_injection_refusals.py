"""Pods that cannot be put under quota, and what they are told."""

import pytest

from injection_builders import Pod, engine, outcome, pod, refused
from kvquota_operator.injection.outcomes import Allowed


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
            pod(engine(command=["vllm", "serve"], args=["m", "--port", "8000", "--"])),
            {},
            "container vllm has a bare -- among its arguments, and the engine would not read what kvquota appends"
            " behind it as options: take it out",
            id="options end before what is appended",
        ),
        pytest.param(
            pod(engine(command=["vllm", "serve"], args=["--port", "8000", "--", "m"])),
            {},
            "container vllm has a bare -- among its arguments, and the engine would not read what kvquota appends"
            " behind it as options: take it out",
            id="options end before the name of the model",
        ),
        pytest.param(
            pod(engine(args=["--model", "m", "--headless"])),
            {},
            "container vllm answers no requests (--headless), so there is nothing to put under quota: take the label"
            " kvquota.dev/inject from this pod and keep it on the one that answers, or take --headless out",
            id="a worker without an API",
        ),
        pytest.param(
            pod(engine(args=["--model", "m", "--api-server-count=0"])),
            {},
            "container vllm answers no requests (--api-server-count 0), so there is nothing to put under quota: take"
            " the label kvquota.dev/inject from this pod and keep it on the one that answers, or take"
            " --api-server-count 0 out",
            id="no API server",
        ),
        pytest.param(
            pod(engine(args=["--model", "m", "-dp", "4"])),
            {},
            "container vllm runs with -dp 4, and ModelPool llama-8b says 1: make spec.engine.parallelism.data the same",
            id="more copies than the pool says",
        ),
        pytest.param(
            pod(engine(args=["--model", "m", "--data-parallel-size=4", "--data-parallel-size-local=2"])),
            {"engine__parallelism": {"data": 4}, "gpu__count": 4},
            "container vllm runs with --data-parallel-size-local 2, and ModelPool llama-8b says 4: make"
            " spec.engine.parallelism.data the same",
            id="fewer copies in the pod than the pool says",
        ),
        pytest.param(
            pod(engine(livenessProbe={"grpc": {"port": 8000}})),
            {},
            "container vllm has a gRPC livenessProbe of port 8000, where the sidecar answers HTTP: make it an httpGet"
            " of /health",
            id="a gRPC probe of the port that moves",
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


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        pytest.param(
            pod(engine(command=["tini", "-g", "--", "vllm", "serve"])), {}, id="a bare -- between a wrapper and vLLM"
        ),
        pytest.param(
            pod(engine(command=["sh", "-c", 'exec vllm serve m "$@"', "--"], args=["--port", "8000"])),
            {},
            id="a bare -- as the name of a shell's string",
        ),
        pytest.param(pod(engine(args=["--model", "m", "--api-server-count", "2"])), {}, id="several API servers"),
        pytest.param(
            pod(engine(args=["--model", "m", "--data-parallel-size", "2"])),
            {"engine__parallelism": {"data": 2}, "gpu__count": 2},
            id="as many copies as the pool says",
        ),
        pytest.param(
            pod(engine(args=["--model", "m", "--data-parallel-size", "8", "--data-parallel-rank", "3"])),
            {},
            id="one of eight copies",
        ),
        pytest.param(
            pod(engine(args=["--model-path", "m", "--headless", "-dp", "4"])),
            {"engine__type": "SGLang", "engine__plugin": "Off"},
            id="another engine with words of its own",
        ),
        pytest.param(pod(engine(livenessProbe={"grpc": {"port": 9000}})), {}, id="a gRPC probe of another port"),
        pytest.param(
            pod(engine(livenessProbe={"grpc": {"port": 8000}})),
            {"sidecar__takeover": "None", "sidecar__port": 8080},
            id="a gRPC probe of a port that stays",
        ),
    ],
)
def test_what_looks_alike_and_works_is_let_in(given: Pod, changes: Pod) -> None:
    assert isinstance(outcome(given, **changes), Allowed)
