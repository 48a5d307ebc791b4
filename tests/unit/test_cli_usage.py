"""Wrong command lines and wrong files: one sentence that names what is wrong, and exit code 2."""

import importlib.metadata
import socket
from pathlib import Path

import pytest

from kvquota_cli.__main__ import main
from kvquota_fakeengine.__main__ import main as fake_engine

RENDER = ["render", "--manifests", "x"]
NO_PATH = "it is empty: name a file or a folder, . for the one that you are in"
NO_NAME = (
    "is no name: it is 1 to 253 lower-case letters, digits, '-' and '.', and begins and ends with a letter or digit"
)
NO_NAMESPACE = (
    "is no namespace: it is 1 to 63 lower-case letters, digits and '-', and begins and ends with a letter or digit"
)


@pytest.mark.parametrize(
    ("arguments", "program", "sentence"),
    [
        (["serve", "--manifsts", "x"], "serve", "there is no option --manifsts: did you mean --manifests?"),
        (["serve", "--manifest", "x"], "serve", "there is no option --manifest: did you mean --manifests?"),
        (["serve", "--manifest=x"], "serve", "there is no option --manifest: did you mean --manifests?"),
        (["check", "x", "--zzz"], "check", "there is no option --zzz: there are --help, --namespace, --output"),
        (["keygen", "search"], "keygen", "search is not expected here: a Secret's name goes with --secret NAME"),
        (["serve"], "serve", "the following arguments are required: --manifests"),
        (["check", ""], "check", f"argument FILE|DIR: {NO_PATH}"),
        (["serve", "--manifests", ""], "serve", f"argument --manifests: {NO_PATH}"),
        (["render", "--manifests", "", "--pod", "a"], "render", f"argument --manifests: {NO_PATH}"),
        ([*RENDER, "--pod", ""], "render", f"argument --pod: '' {NO_NAME}"),
        ([*RENDER, "--pod", "Bad_Name!"], "render", f"argument --pod: 'Bad_Name!' {NO_NAME}"),
        ([*RENDER, "--pod", "a" * 300], "render", f"argument --pod: '{'a' * 58}… {NO_NAME}"),
        ([*RENDER, "--pool", ""], "render", f"argument --pool: '' {NO_NAME}"),
        ([*RENDER, "-n", ""], "render", f"argument -n/--namespace: '' {NO_NAMESPACE}"),
        (["check", "x", "-n", "A"], "check", f"argument -n/--namespace: 'A' {NO_NAMESPACE}"),
        (["serve", "--manifests", "x", "-n", ""], "serve", f"argument -n/--namespace: '' {NO_NAMESPACE}"),
        (
            [*RENDER, "--pod", "a", "--pod", "b"],
            "render",
            "argument --pod: --pod is one too many: it was given before, keep one of them",
        ),
    ],
)
def test_a_wrong_command_line_is_named_with_the_usage_of_its_own_command(
    arguments: list[str], program: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    usage, *_, last = capsys.readouterr().err.splitlines()
    assert usage.startswith(f"usage: kvquota {program} ")
    assert last == f"kvquota {program}: error: {sentence}"


def test_a_wrong_option_before_the_command_is_named_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["kvquota", "--versoin"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "there is no option --versoin: did you mean --version?" in capsys.readouterr().err


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"kvquota {importlib.metadata.version('kvquota')}\n"


@pytest.mark.parametrize(
    ("words", "beside"),
    [
        pytest.param(["--version", "foo"], "foo", id="a word after it"),
        pytest.param(["--version", "check", "a.yaml"], "check a.yaml", id="a command after it"),
    ],
)
def test_a_word_beside_the_version_is_told(words: list[str], beside: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    written = capsys.readouterr()
    assert written.err.splitlines()[-1] == f"kvquota: error: {beside} is not expected beside --version: leave it out"
    assert written.out == ""


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param(None, "cannot be read: No such file or directory", id="not there"),
        pytest.param("# A `title`: [\n", "is no kubeconfig, it holds no object", id="nothing but a comment"),
        pytest.param("a: [", "is no kubeconfig, it is not YAML", id="no YAML"),
        pytest.param("clusters: 5", "is no kubeconfig, it has no list of clusters", id="another YAML"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_named(
    content: str | None, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    assert main(["demo", "--kubeconfig", str(file)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (
        "",
        f"kvquota: --kubeconfig {file}: {complaint}; name the file that kubectl uses, such as ~/.kube/config\n",
    )


def test_one_address_for_both_ports_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--manifests", "x", "--listen", "127.0.0.1:81", "--admin", "127.0.0.1:81"]) == 2
    said = capsys.readouterr().err
    assert said == "kvquota: --listen and --admin are both 127.0.0.1:81: give them two different ports\n"


def test_a_fake_engine_whose_port_is_taken_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert fake_engine(["--port", str(port)]) == 2
    assert capsys.readouterr().err == (
        f"kvquota_fakeengine: cannot listen on 127.0.0.1:{port}: Address already in use;"
        " give another --host, --port or --control-port\n"
    )
