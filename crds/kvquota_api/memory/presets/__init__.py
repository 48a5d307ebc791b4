"""Configs of well-known models, as their publishers state them; each is a `<name>.json` in this folder."""

from __future__ import annotations

import difflib
import json
from importlib import resources
from typing import Any

from kvquota_api.memory.errors import ModelConfigError


def preset_names() -> tuple[str, ...]:
    """Names of all presets, sorted."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json")))


def load_preset(name: str) -> dict[str, Any]:
    """The config.json of a preset. Raises ModelConfigError that lists the presets."""
    names = preset_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        meant = f"; did you mean {near[0]}?" if near else "."
        raise ModelConfigError(
            f"spec.model.config.preset: {name} is not one of {', '.join(names)}{meant}"
            " For any other model use configMapRef or inline"
        )
    config: dict[str, Any] = json.loads(resources.files(__name__).joinpath(f"{name}.json").read_text("utf-8"))
    return config
