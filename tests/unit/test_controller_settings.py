"""The command line of the operator."""

from importlib import metadata
from pathlib import Path

import pytest

from kvquota_operator.settings import Address, LeaseSettings, OperatorSettings, parse_settings

LEASE = LeaseSettings("kvquota-operator")


@pytest.mark.parametrize(
    ("argv", "settings"),
    [
        pytest.param(
            ["--namespace", "a"],
            OperatorSettings(("a",), None, 2.0, Address("", 8080), LEASE, "json"),
            id="one namespace, and the defaults",
        ),
        pytest.param(
            ["--namespace=b", "--namespace=a", "--namespace=b"],
            OperatorSettings(("b", "a"), None, 2.0, Address("", 8080), LEASE),
            id="several namespaces, each once",
        ),
        pytest.param(
            ["--all-namespaces", "--sync-seconds=0.5", "--listen=[::1]:9"],
            OperatorSettings((), None, 0.5, Address("::1", 9), LEASE),
            id="all namespaces, and an IPv6 address",
        ),
        pytest.param(
            ["--all-namespaces", f"--kubeconfig={__file__}", "--listen=127.0.0.1:65535"],
            OperatorSettings((), Path(__file__), 2.0, Address("127.0.0.1", 65535)),
            id="a kubeconfig: outside of a pod there is one operator",
        ),
        pytest.param(
            ["--all-namespaces", "--lease-name=mine", "--lease-namespace=home", "--log-format=text"],
            OperatorSettings((), None, 2.0, Address("", 8080), LeaseSettings("mine", "home"), "text"),
            id="another Lease, and lines for people",
        ),
        pytest.param(
            ["--all-namespaces", "--no-leader-elect"],
            OperatorSettings((), None, 2.0, Address("", 8080), None),
            id="no election in a pod",
        ),
        pytest.param(
            ["--all-namespaces", f"--kubeconfig={__file__}", "--leader-elect", "--lease-namespace=home"],
            OperatorSettings((), Path(__file__), 2.0, Address("", 8080), LeaseSettings("kvquota-operator", "home")),
            id="an election outside of a pod",
        ),
    ],
)
def test_what_a_command_line_means(argv: list[str], settings: OperatorSettings) -> None:
    assert parse_settings(argv) == settings


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        pytest.param([], "one of the arguments --namespace --all-namespaces is required", id="nothing to serve"),
        pytest.param(["--namespace=a", "--all-namespaces"], "not allowed with", id="some and all"),
        pytest.param(["--namespace="], "'' is not the name of a namespace: write", id="a variable that is not set"),
        pytest.param(["--namespace=Bad NS"], "'Bad NS' is not the name of a namespace: write", id="no label"),
        pytest.param(["--namespace=a", "--namespace="], "'' is not the name of a namespace", id="one, and none"),
        pytest.param([f"--namespace={'a' * 64}"], "is not the name of a namespace", id="a name of 64"),
        pytest.param(["--all-namespaces", "--lease-name=Bad Name"], "'Bad Name' is not a name of", id="no Lease"),
        pytest.param(["--all-namespaces", "--lease-name="], "'' is not a name of Kubernetes: write", id="no name"),
        pytest.param(
            ["--all-namespaces", f"--kubeconfig={__file__}", "--leader-elect", "--lease-namespace="],
            "argument --lease-namespace: '' is not the name of a namespace",
            id="a Lease in no namespace",
        ),
        pytest.param(["--all-namespaces", "--sync-seconds=0.1"], "from 0.2 to 60", id="too fast"),
        pytest.param(["--all-namespaces", "--sync-seconds=nan"], "from 0.2 to 60", id="no number"),
        pytest.param(["--all-namespaces", "--sync-seconds=soon"], "from 0.2 to 60", id="a word for a number"),
        pytest.param(["--all-namespaces", "--listen=8080"], "write :8080", id="a port without a colon"),
        pytest.param(["--all-namespaces", "--listen=:0"], "write :8080", id="port 0"),
        pytest.param(["--all-namespaces", "--listen=:65536"], "write :8080", id="a port that cannot be"),
        pytest.param(
            ["--all-namespaces", f"--kubeconfig={__file__}", "--leader-elect"],
            "needs --lease-namespace: name the namespace of the Lease",
            id="an election outside of a pod, and nobody knows where",
        ),
        pytest.param(["--all-namespaces", "--log-format=xml"], "choose from", id="a format that there is not"),
        pytest.param(["--all-namespaces", "--kubeconfig=/nowhere"], "name a kubeconfig", id="a file that is not there"),
        pytest.param(["--version", "foo"], "foo is not expected beside --version: leave it out", id="a word for it"),
    ],
)
def test_what_is_refused_says_what_to_write(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_settings(argv)
    assert ended.value.code == 2
    assert complaint in " ".join(capsys.readouterr().err.split())


def test_the_version_is_told_and_nothing_else_need_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_settings(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"kvquota-operator {metadata.version('kvquota')}\n")
