"""A ModelPool in a file, and the config.json that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvquota_api.memory.plan import model_config_of
from kvquota_api.model_pool import ModelPool
from kvquota_api.quoting import quoted
from kvquota_api.validation import InvalidObjectError, parse_model_pool
from kvquota_cli.errors import CliError
from kvquota_cli.manifests.documents import Document, ManifestError, read_documents
from kvquota_operator.reading.objects import read_model_config


def read_pool(text: str, file: Path, wanted: str | None) -> tuple[Mapping[str, Any], ModelPool]:
    """The config.json and the pool. `wanted`: its name, or NAMESPACE/NAME, where the file has several.

    Raises CliError, and ModelConfigError where the config that the pool names is not there.
    """
    documents = _documents(text, file)
    chosen = _pool(documents, file, wanted)
    pool = _parsed(chosen)
    return model_config_of(pool.spec, _config_map(documents, chosen, pool)), pool


def _documents(text: str, file: Path) -> tuple[Document, ...]:
    try:
        return read_documents(text, str(file))
    except ManifestError as error:
        raise CliError(f"--model {error}; give a config.json or a file with a ModelPool") from error


def _pool(documents: tuple[Document, ...], file: Path, wanted: str | None) -> Document:
    pools = [each for each in documents if each.content.get("kind") == "ModelPool"]
    if not pools:
        raise CliError(f"--model {file}: it holds no ModelPool: give a config.json, or a file with a ModelPool")
    named = [each for each in pools if wanted in (None, _name(each), _full_name(each))]
    names = _names(pools)
    if not named:
        raise CliError(f"--pool {quoted(wanted)}: {file} has no ModelPool of this name: give one of {names}")
    if len({_full_name(each) for each in named}) < len(named):
        raise CliError(f"--model {named[1].place}: ModelPool {_shown(_full_name(named[1]))} is there twice: keep one")
    if len(named) > 1:
        raise CliError(f"--model {file}: it holds several ModelPools: give --pool one of {names}")
    return named[0]


def _parsed(document: Document) -> ModelPool:
    try:
        return parse_model_pool(document.content)
    except InvalidObjectError as error:
        raise CliError(f"--model {document.place}: ModelPool {_shown(_name(document))}: {error}") from error


def _names(pools: Sequence[Document]) -> str:
    """In the file's order, with the namespace where a name alone would not tell."""
    alone = {_name(each) for each in pools}
    name_of = _name if len(alone) == len(pools) else _full_name
    return ", ".join(dict.fromkeys(_shown(name_of(each)) for each in pools))


def _shown(name: str) -> str:
    return name if name.isascii() and name.isprintable() else quoted(name)


def _metadata(document: Document) -> Mapping[str, Any]:
    metadata = document.content.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _name(document: Document) -> str:
    return str(_metadata(document).get("name", ""))


def _full_name(document: Document) -> str:
    """With its namespace, where it names one."""
    namespace = _metadata(document).get("namespace")
    return f"{namespace}/{_name(document)}" if namespace else _name(document)


def _config_map(documents: tuple[Document, ...], chosen: Document, pool: ModelPool) -> Mapping[str, Any] | None:
    """What the pool's configMapRef holds, where that ConfigMap is in the same file and namespace."""
    reference = pool.spec.model.config.config_map_ref
    if reference is None:
        return None
    namespace = _metadata(chosen).get("namespace")
    for each in documents:
        same = (_name(each), _metadata(each).get("namespace")) == (reference.name, namespace)
        data = each.content.get("data")
        if each.content.get("kind") == "ConfigMap" and same and isinstance(data, dict) and reference.key in data:
            return _config_in(each, reference.key)
    return None


def _config_in(config_map: Document, key: str) -> Mapping[str, Any]:
    config = read_model_config(config_map.content, key)
    if config is None:
        raise CliError(
            f"--model {config_map.place}: ConfigMap {_shown(_name(config_map))}: its key {key} holds no JSON"
            " object: put the model's config.json there"
        )
    return config
