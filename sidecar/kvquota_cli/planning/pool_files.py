"""A ModelPool in a file, and the config.json that it names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvquota_api.memory.plan import model_config_of
from kvquota_api.model_pool import ModelPool
from kvquota_api.validation import InvalidObjectError, parse_model_pool
from kvquota_cli.errors import CliError
from kvquota_cli.manifests.documents import Document, ManifestError, read_documents


def read_pool(text: str, file: Path, wanted: str | None) -> tuple[Mapping[str, Any], ModelPool]:
    """The config.json and the pool. `wanted`: its name, where the file has several.

    Raises CliError, and ModelConfigError where the config that the pool names is not there.
    """
    documents = _documents(text, file)
    pool = _pool(documents, file, wanted)
    return model_config_of(pool.spec, _config_map(documents, pool)), pool


def _documents(text: str, file: Path) -> tuple[Document, ...]:
    try:
        return read_documents(text, str(file))
    except ManifestError as error:
        raise CliError(f"--model {error}; give a config.json or a file with a ModelPool") from error


def _pool(documents: tuple[Document, ...], file: Path, wanted: str | None) -> ModelPool:
    pools = {_name(each): each for each in documents if each.content.get("kind") == "ModelPool"}
    names = ", ".join(pools)
    if not pools:
        raise CliError(f"--model {file}: it holds no ModelPool: give a config.json, or a file with a ModelPool")
    if wanted is None and len(pools) > 1:
        raise CliError(f"--model {file}: it holds several ModelPools: give --pool one of {names}")
    if wanted is not None and wanted not in pools:
        raise CliError(f"--pool {wanted}: {file} has no ModelPool of this name: give one of {names}")
    chosen = pools[wanted if wanted is not None else names]
    try:
        return parse_model_pool(chosen.content)
    except InvalidObjectError as error:
        raise CliError(f"--model {chosen.place}: ModelPool {_name(chosen)}: {error}") from error


def _name(document: Document) -> str:
    metadata = document.content.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""


def _config_map(documents: tuple[Document, ...], pool: ModelPool) -> Mapping[str, Any] | None:
    """What the pool's configMapRef holds, where that ConfigMap is in the same file."""
    reference = pool.spec.model.config.config_map_ref
    if reference is None:
        return None
    for each in documents:
        data = each.content.get("data")
        if each.content.get("kind") == "ConfigMap" and _name(each) == reference.name and isinstance(data, dict):
            config = _json(data.get(reference.key))
            if isinstance(config, dict):
                return config
    return None


def _json(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (json.JSONDecodeError, RecursionError):
        return None
