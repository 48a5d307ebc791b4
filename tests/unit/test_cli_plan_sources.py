"""What `--model` names."""

import json
import os
import threading
from pathlib import Path

import pytest

from kvquota_api.memory.errors import ModelConfigError
from kvquota_api.memory.presets import load_preset
from kvquota_cli.errors import CliError
from kvquota_cli.planning.sources import MAX_FILE_BYTES, ModelSource, read_source

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
POOL = """\
apiVersion: kvquota.dev/v1alpha1
kind: ModelPool
metadata: {name: pool}
spec:
  selector: {matchLabels: {app: x}}
  model: {name: m, config: {configMapRef: {name: configs, key: config.json}}}
  engine: {type: vLLM}
  gpu: {memory: 80Gi}
"""
CONFIG_MAP = """\
---
apiVersion: v1
kind: ConfigMap
metadata: {name: configs}
data:
  config.json: '{"model_type": "llama"}'
"""


def test_a_preset_is_found_by_its_name() -> None:
    assert read_source("llama-3.1-8b", None) == ModelSource(
        "llama-3.1-8b", load_preset("llama-3.1-8b"), preset="llama-3.1-8b"
    )


@pytest.mark.parametrize(
    ("file", "named", "name"),
    [
        pytest.param("tiny.json", "tiny.json", "tiny", id="a file of any name"),
        pytest.param("tiny/config.json", "tiny/config.json", "tiny", id="a config.json is called as its folder"),
        pytest.param("tiny/config.json", "tiny", "tiny", id="a folder that has one"),
    ],
)
def test_a_config_is_read_from_a_file(file: str, named: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(CONFIG))
    assert read_source(str(tmp_path / named), None) == ModelSource(name, CONFIG)


def test_a_config_that_says_its_name_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps({**CONFIG, "_name_or_path": "org/tiny"}))
    assert read_source(str(tmp_path / "c.json"), None).name == "org/tiny"


def test_one_of_several_pools_is_chosen_by_its_name() -> None:
    source = read_source(str(EXAMPLES / "modelpool.yaml"), "llama-1b")
    assert source.pool is not None
    assert (source.name, source.preset, source.config) == ("llama-1b", "llama-3.2-1b", load_preset("llama-3.2-1b"))


def test_a_pool_finds_the_config_map_of_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text(POOL + CONFIG_MAP)
    assert read_source(str(tmp_path / "pool.yaml"), None).config == {"model_type": "llama"}


@pytest.mark.parametrize(
    "others",
    [
        pytest.param("", id="no ConfigMap at all"),
        pytest.param(CONFIG_MAP.replace("configs", "another"), id="another one"),
        pytest.param(CONFIG_MAP.replace("config.json", "other.json"), id="without the key"),
    ],
)
def test_a_config_map_that_is_elsewhere_is_asked_for(others: str, tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text(POOL + others)
    with pytest.raises(ModelConfigError, match=r"^spec\.model\.config\.configMapRef: ConfigMap configs"):
        read_source(str(tmp_path / "pool.yaml"), None)


def test_a_pool_in_json_is_a_pool(tmp_path: Path) -> None:
    pool = {
        "apiVersion": "kvquota.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {"name": "pool"},
        "spec": {
            "selector": {"matchLabels": {"app": "x"}},
            "model": {"name": "m", "config": {"inline": CONFIG}},
            "engine": {"type": "vLLM"},
            "gpu": {"memory": "80Gi"},
        },
    }
    (tmp_path / "pool.json").write_text(json.dumps(pool))
    assert read_source(str(tmp_path / "pool.json"), None).config == CONFIG


@pytest.mark.parametrize(
    ("content", "pool", "says"),
    [
        pytest.param(b"[1]", None, "a config.json holds an object, not list", id="JSON that is no object"),
        pytest.param(b"{}", "a", "--pool chooses among the ModelPools of a file", id="a pool of a config.json"),
        pytest.param(b"a: [", None, "give a config.json or a file with a ModelPool", id="neither JSON nor YAML"),
        pytest.param(b"kind: Secret", None, "it holds no ModelPool", id="other manifests"),
        pytest.param(
            POOL.encode(), "b", "has no ModelPool of this name: give one of pool", id="a pool of another name"
        ),
        pytest.param(
            POOL.replace("80Gi", "80GiB").encode(),
            None,
            "pool.yaml:1: ModelPool pool: spec.gpu.memory",
            id="a wrong pool",
        ),
        pytest.param(b'{"a": ' + b"9" * 5000 + b"}", None, "a number of thousands of digits", id="5,000 digits"),
        pytest.param(b'{"a":' * 5000 + b"1" + b"}" * 5000, None, "thousands of levels", id="5,000 levels"),
        pytest.param(b" " * (MAX_FILE_BYTES + 1), None, "more than 4 MiB: name the right file", id="a file of weights"),
    ],
)
def test_a_file_that_is_no_model_is_refused_with_what_to_do(
    content: bytes, pool: str | None, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "pool.yaml"
    file.write_bytes(content)
    with pytest.raises(CliError) as raised:
        read_source(str(file), pool)
    assert says in str(raised.value)
    assert str(file) in str(raised.value)


@pytest.mark.parametrize(
    ("named", "pool", "says"),
    [
        pytest.param(
            "llama-3.1-8", None, "no file and no preset has this name; did you mean llama-3.1-8b", id="a slip"
        ),
        pytest.param("zzzz", None, "no file and no preset has this name; presets are ", id="a name unlike any"),
        pytest.param("a" * 5000, None, "no file and no preset has this name", id="a name longer than any file's"),
        pytest.param("\x1b[31mx", None, "--model '\\x1b[31mx': no file", id="a name that would colour a terminal"),
        pytest.param("llama-3.1-8b", "a", "--pool chooses among the ModelPools of a file", id="a pool of a preset"),
        pytest.param(str(EXAMPLES), None, "the folder has no config.json: name the file itself", id="a folder without"),
        pytest.param(
            str(EXAMPLES / "modelpool.yaml"), None, "give --pool one of llama-8b, llama-1b", id="several pools"
        ),
    ],
)
def test_a_name_that_is_no_model_is_refused_with_what_to_do(named: str, pool: str | None, says: str) -> None:
    with pytest.raises(CliError) as raised:
        read_source(named, pool)
    assert says in str(raised.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(CliError) as raised:
        read_source(str(file), None)
    assert str(raised.value) == f"--model {file}: cannot be read: Permission denied; name a file that is there"


def test_a_config_with_a_byte_order_mark_is_a_config(tmp_path: Path) -> None:
    (tmp_path / "llama.json").write_text(json.dumps(load_preset("llama-3.2-1b")), encoding="utf-8-sig")
    assert read_source(str(tmp_path / "llama.json"), None).config == load_preset("llama-3.2-1b")


def test_a_pipe_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writing = threading.Thread(target=pipe.write_text, args=[json.dumps(load_preset("llama-3.2-1b"))])
    writing.start()
    assert read_source(str(pipe), None).config == load_preset("llama-3.2-1b")
    writing.join()
