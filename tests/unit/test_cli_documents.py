"""Manifest text to documents: what kubectl would send, and the line of everything."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from kvquota_cli.embedded.folder import look_at
from kvquota_cli.errors import CliError
from kvquota_cli.manifests import collection, documents, files, places, secrets
from kvquota_cli.manifests.documents import Document, ManifestError, read_documents
from kvquota_cli.manifests.places import Finding, ObjectKey, Place


def read(text: str) -> Any:
    return [document.content for document in read_documents(text, "a.yaml")]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("a: 2026-11-01", "2026-11-01", id="a date stays text"),
        pytest.param("a: 1:30", "1:30", id="a base-60 number stays text"),
        pytest.param("a: 16", 16, id="an integer"),
        pytest.param("a: 0x10", 16, id="a hexadecimal integer"),
        pytest.param("a: 1e3", 1000.0, id="an exponent without a point"),
        pytest.param("a: 2.5", 2.5, id="a decimal fraction"),
        pytest.param("a: '2.5'", "2.5", id="quoted text"),
        pytest.param("a: on", True, id="on is true"),
        pytest.param("a: ~", None, id="a tilde is null"),
        pytest.param("a: 8Gi", "8Gi", id="a quantity is text"),
        pytest.param("a: 0.32.1", "0.32.1", id="a version is text"),
        pytest.param("x: &x {b: 1}\na: {<<: *x, c: 2}", {"b": 1, "c": 2}, id="merged keys"),
        pytest.param('{"a": [1, {"b": "\\u00e4"}]}', [1, {"b": "ä"}], id="JSON"),
    ],
)
def test_scalars_are_read_as_kubectl_reads_them(text: str, value: Any) -> None:
    found = read(text)[0]["a"]
    assert (type(found), found) == (type(value), value)


def test_empty_documents_are_none_and_a_list_is_its_items() -> None:
    text = "---\n---\nkind: List\nitems:\n- kind: A\n- kind: B\n---\n# nothing\n---\nkind: C\n"
    assert [(each.content, each.place.line) for each in read_documents(text, "a.yaml")] == [
        ({"kind": "A"}, 5),
        ({"kind": "B"}, 6),
        ({"kind": "C"}, 10),
    ]


def test_every_field_has_its_line_and_an_absent_one_that_of_the_nearest_above() -> None:
    text = "kind: List\nitems:\n- kind: A\n  spec:\n    tiers:\n    - name: x\n    - {name: y,\n       kv: 1}\n"
    (document,) = read_documents(text, "a.yaml")
    wanted = {("spec",): 4, ("spec", "tiers", 0, "name"): 6, ("spec", "tiers", 1, "kv"): 8, ("spec", "x", "y"): 4}
    assert {path: document.at(*path).line for path in wanted} == wanted
    assert document.at("absent") == Place("a.yaml", 3)


def nested(levels: int) -> str:
    return "a: " + "[" * levels + "]" * levels


def laughs() -> str:
    return "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
    )


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        pytest.param("a: 1\nb: [1\n", 3, "not valid YAML: expected ',' or ']'", id="a bracket that stays open"),
        pytest.param("a: 1\n\tb: 2\n", 2, "not valid YAML: found character '\\\\t'", id="a tab"),
        pytest.param("a: 1\nb: 2\na: 3\n", 3, "a is written twice, first in line 1", id="a key twice"),
        pytest.param(
            "a:\n  <<: {b: 1}\n  <<: {c: 1}\n  b: 1\n  b: 2", 5, "b is written twice", id="a key twice beside merges"
        ),
        pytest.param("a: 1\n---\n- b\n", 3, "a document must be a mapping", id="a list as a document"),
        pytest.param("a: 1\n1: 2\n", 2, "the key '1' must be text: put it in quotes", id="a number as a key"),
        pytest.param("a: 1\n? [b]\n: 2\n", 2, "must be text", id="a list as a key"),
        pytest.param("a: .nan", 1, ".nan is not a number that an API server takes", id="not a number"),
        pytest.param("a:\n  !!binary aGk=", 2, "is not a type that a manifest can have", id="binary"),
        pytest.param(
            "a: !!python/name:os.system ''", 1, "not valid YAML: could not determine a constructor", id="a Python tag"
        ),
        pytest.param("a: *b", 1, "not valid YAML: found undefined alias", id="an alias of nothing"),
        pytest.param("a: &a [*a]", 1, "too large", id="an alias of itself"),
        pytest.param(nested(70), 1, "too large", id="too deep"),
        pytest.param(nested(5000), 1, "too large", id="deeper than the stack"),
        pytest.param(laughs(), 1, "too large", id="aliases that grow tenfold"),
        pytest.param("kind: List\nitems:\n- a\n", 3, "items\\[0\\] of the List must be an object", id="text in a List"),
        pytest.param("a: 1\nb: \x00", 2, "not valid YAML: special characters are not allowed", id="a zero byte"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(text: str, line: int, sentence: str) -> None:
    with pytest.raises(ManifestError, match=sentence) as caught:
        read_documents(text, "a.yaml")
    assert caught.value.finding.place == Place("a.yaml", line)


def test_bytes_that_are_no_text_and_files_too_large_are_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe4\n")
    (tmp_path / "large.yaml").write_bytes(b"#" * (files.MAX_BYTES + 1))
    found, findings = files.read_all(
        files.Found((tmp_path / "absent.yaml", tmp_path / "large.yaml", tmp_path / "latin.yaml"))
    )
    assert found == ()
    assert [str(each).removeprefix(f"{tmp_path}/") for each in findings] == [
        "absent.yaml:1: error: cannot be read: No such file or directory",
        "large.yaml:1: error: is larger than 3 MiB: split it",
        "latin.yaml:2: error: is not UTF-8 text: save it as UTF-8",
    ]


def test_a_folder_is_its_own_manifests_by_name_without_hidden_files_and_sub_folders(tmp_path: Path) -> None:
    for name in ("b.yml", "a.yaml", "c.json", ".a.yaml.swp", ".hidden.yaml", "notes.txt", "a.yaml~"):
        (tmp_path / name).write_text("")
    (tmp_path / "d.yaml").mkdir()
    (tmp_path / "d.yaml" / "e.yaml").write_text("")
    assert [path.name for path in files.expand([tmp_path, tmp_path / "a.yaml"]).files] == ["a.yaml", "b.yml", "c.json"]


def test_what_is_named_like_a_manifest_and_is_no_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("")
    (tmp_path / "b.yaml").symlink_to(tmp_path / "gone.yaml")
    (tmp_path / "d.yml").mkdir()
    os.mkfifo(tmp_path / "c.json")
    found, findings = files.read_all(files.expand([tmp_path]))
    assert found == ()
    assert [str(each).removeprefix(f"{tmp_path}/") for each in findings] == [
        "b.yaml:1: error: is a link to a file that is not there: mend it, or take it away",
        "c.json:1: error: is no file (a pipe, a socket or a device), so it is not read: take it away",
        "d.yml:1: warning: is a folder, and sub-folders are not read: name it by itself",
    ]
    assert set(look_at(tmp_path)) == {str(tmp_path / name) for name in ("a.yaml", "b.yaml", "c.json", "d.yml")}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        pytest.param("", "holds no .yaml, .yml or .json file", id="an empty folder"),
        pytest.param(
            "absent", "cannot read .*absent: No such file or directory; name a manifest file", id="nothing there"
        ),
    ],
)
def test_a_path_without_manifests_is_an_error_that_says_what_to_name(tmp_path: Path, name: str, sentence: str) -> None:
    with pytest.raises(CliError, match=sentence):
        files.expand([tmp_path / name])


def one(text: str) -> Document:
    (document,) = read_documents(text, "s.yaml")
    return document


@pytest.mark.parametrize(
    ("text", "entries", "findings"),
    [
        pytest.param("stringData: {key: abc}", {"key": b"abc"}, [], id="plain text"),
        pytest.param("data: {key: YWJj}", {"key": b"abc"}, [], id="base64"),
        pytest.param("data:\n  key: |\n    YWJj\n    ZGVm\n", {"key": b"abcdef"}, [], id="base64 in lines"),
        pytest.param(
            "data: {key: YWJj, b: ''}\nstringData: {key: x}", {"key": b"x", "b": b""}, [], id="text wins over base64"
        ),
        pytest.param(
            "data:\n  bad: YWJ\n  good: YWJj\n",
            {"good": b"abc"},
            ["s.yaml:2: error: data.bad: not base64: encode it, or write it as it is under stringData"],
            id="bad base64 beside good",
        ),
        pytest.param(
            "stringData: {key: 123}",
            {},
            ["s.yaml:1: error: stringData.key: must be text: put the value in quotes"],
            id="a number as text",
        ),
        pytest.param("data: [a]", {}, ["s.yaml:1: error: data: must be a mapping of names to text"], id="a list"),
        pytest.param("stringData:", {}, [], id="null"),
    ],
)
def test_the_entries_of_a_secret(text: str, entries: dict[str, bytes], findings: list[str]) -> None:
    found, wrong = secrets.secret_entries(one(text))
    assert (found, [str(each) for each in wrong]) == (entries, findings)


def test_the_entries_of_a_config_map() -> None:
    found, wrong = secrets.config_map_entries(one("data: {a: x}\nbinaryData: {b: eQ==, c: '!'}"))
    assert found == {"a": b"x", "b": b"y"}
    assert [each.field for each in wrong] == ["binaryData.c"]


def objects(*texts: str) -> tuple[list[str], list[str]]:
    read_in = [each for index, text in enumerate(texts) for each in read_documents(text, f"{index}.yaml")]
    found = collection.collect(reversed(read_in), "default")
    return [f"{each.key} {each.document.place}" for each in found.manifests], [str(each) for each in found.findings]


SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\n"


def test_of_two_documents_for_one_object_the_first_by_file_and_line_counts() -> None:
    a, b = SECRET.format(name="a"), SECRET.format(name="a, namespace: default")
    assert objects(a, f"{b}---\n{b}") == (
        ["Secret default/a 0.yaml:1"],
        [
            "1.yaml:1: error: Secret default/a: is already in 0.yaml:1: keep one of the two, the first is used",
            "1.yaml:5: error: Secret default/a: is already in 0.yaml:1: keep one of the two, the first is used",
        ],
    )


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        pytest.param("kind: A", "0.yaml:1: error: apiVersion: is missing: .*", id="no apiVersion"),
        pytest.param("apiVersion: v1\nkind: 1", "0.yaml:2: error: kind: is missing: .*", id="a kind that is no text"),
        pytest.param("apiVersion: v1\nkind: A", "0.yaml:1: error: A: metadata.name: is missing: .*", id="no metadata"),
        pytest.param(
            SECRET.format(name="B_b"), "0.yaml:3: error: Secret: metadata.name: 'B_b' is no name: .*", id="a bad name"
        ),
        pytest.param(
            SECRET.format(name=7), "0.yaml:3: error: Secret: metadata.name: 7 is no name: .*", id="a number as a name"
        ),
        pytest.param(
            SECRET.format(name="a, namespace: 7"),
            "0.yaml:3: error: Secret a: metadata.namespace: 7 is no namespace: .*",
            id="a number as a namespace",
        ),
    ],
)
def test_a_document_that_names_no_object_is_a_finding_and_the_others_stay(text: str, finding: str) -> None:
    found, (wrong,) = objects(text, SECRET.format(name="good"))
    assert found == ["Secret default/good 1.yaml:1"]
    assert re.fullmatch(finding, wrong)


def test_paths_are_written_as_people_write_them() -> None:
    assert places.dotted(("spec", "tiers", 0, "labels", "a.b/c", "x")) == "spec.tiers[0].labels['a.b/c'].x"


def test_a_finding_is_one_line_and_leaves_out_what_it_does_not_have() -> None:
    full = Finding(Place("a.yaml", 3), "is wrong", str(ObjectKey("TenantQuota", "n", "q")), "spec.kv", "warning")
    assert str(full) == "a.yaml:3: warning: TenantQuota n/q: spec.kv: is wrong"
    assert str(Finding(Place("a.yaml", 1), "is wrong")) == "a.yaml:1: error: is wrong"


def test_the_bound_on_nodes_leaves_room_for_a_thousand_quotas() -> None:
    quota = "apiVersion: x\nkind: Y\nmetadata: {name: q}\nspec: {a: {b: 1}, c: [{d: {e: 1, f: 2}}]}\n---\n"
    assert len(read_documents(quota * 1000, "a.yaml")) == 1000
    assert documents.MAX_NODES > 40_000
