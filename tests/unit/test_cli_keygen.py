"""API keys and their Secrets: what is printed can be applied as it is, and names the key exactly."""

import re

import pytest
import yaml

from kvquota_cli import keys
from kvquota_cli.__main__ import main

ZEROS = "kvq-" + "0" * 64


def zero_bytes(count: int) -> bytes:
    return bytes(count)


def test_a_key_is_kvq_and_256_random_bits_in_hexadecimal() -> None:
    assert keys.new_key(zero_bytes) == ZEROS


def test_two_keys_differ(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for _ in range(2):
        assert main(["keygen"]) == 0
        printed.append(capsys.readouterr().out)
    assert all(re.fullmatch(r"kvq-[0-9a-f]{64}\n", each) for each in printed)
    assert printed[0] != printed[1]


@pytest.mark.parametrize(
    ("name", "namespace", "entry"),
    [
        pytest.param("search-api-key", "inference", "key", id="usual names"),
        pytest.param("1e3", "12", "0x10", id="names that YAML would read as numbers"),
        pytest.param("yes", "n", "null", id="names that YAML would read as booleans or null"),
        pytest.param("a.b", "default", ".dot", id="names with dots"),
    ],
)
def test_the_secret_is_one_document_that_reads_back_as_written(name: str, namespace: str, entry: str) -> None:
    text = keys.secret_manifest(ZEROS, name, namespace, entry, None)
    assert list(yaml.safe_load_all(text)) == [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kvquota.dev/api-key",
            "metadata": {"name": name, "namespace": namespace},
            "stringData": {entry: ZEROS},
        }
    ]


def test_the_comments_are_the_lines_of_a_quota_that_name_this_secret() -> None:
    text = keys.secret_manifest(ZEROS, "search-api-key", "inference", "key", "search")
    head, *comments = [line.removeprefix("#") for line in text.splitlines() if line.startswith("#")]
    assert (
        head.strip() == "The lines that let clients in with this key, in the spec of the TenantQuota inference/search:"
    )
    assert yaml.safe_load("\n".join(comments)) == {
        "identity": {"apiKeys": [{"secretRef": {"name": "search-api-key", "key": "key"}}]}
    }


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param(["--secret", "Search_Key"], "--secret 'Search_Key'", id="capital letters and underscores"),
        pytest.param(["--secret", "a" * 254], "253 characters at most", id="a name that is too long"),
        pytest.param(["--secret", "a\n"], "--secret 'a\\n'", id="a name that ends in a line feed"),
        pytest.param(["--secret", "a", "--namespace", "a.b"], "--namespace 'a.b'", id="a namespace with a dot"),
        pytest.param(["--secret", "a", "--key", "a b"], "--key 'a b'", id="an entry with a blank"),
        pytest.param(["--secret", "a", "--quota", ""], "--quota ''", id="an empty quota"),
        pytest.param(["--quota", "search"], "--quota needs --secret", id="a quota without a Secret"),
    ],
)
def test_a_name_that_kubernetes_would_refuse_is_refused_with_what_is_allowed(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keygen", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("kvquota: ")
    assert complaint in printed.err
    assert printed.err.count("\n") == 1
