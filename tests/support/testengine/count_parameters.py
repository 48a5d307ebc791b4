"""Count the parameters of real model classes, by part: what tests/data/memory/parameters.json records.

Runs in the engine's environment, with the file as its argument:

    ENGINE_PYTHON tests/support/testengine/count_parameters.py tests/data/memory/parameters.json

Each entry's config is built as a model of transformers on torch's meta device, which has shapes and no memory; its
`parameters` are written anew. The entries of `live` are configs of that name in live.json beside the file.
"""

import importlib
import json
import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

Document = dict[str, Any]

# What a parameter belongs to, by its name: the first that is found in it.
PARTS = (
    ("vision", r"visual|vision|multi_modal_projector|mm_projector|patch_merge"),
    ("norm", r"norm|\bln_|\.ln_"),
    ("embedding", r"embed_tokens|embed_positions|embed_in|word_embeddings|embeddings\.weight|\bwte|\.wte|\.wpe"),
    ("head", r"lm_head|proj_out"),
    ("router", r"router|\.gate\.|shared_expert_gate|moe_statics|expert_bias"),
    ("shared", r"shared_expert|shared_mlp"),
    ("experts", r"\.experts\."),
    ("other", r"altup|laurel|per_layer|act_fn|_hc\.|hc_head|encoder\.conv\d|\.linear\.weight"),
    ("state", r"mamba|linear_attn|\.conv\.|mixer\.(in_proj|conv1d|x_proj|dt_proj|A_log|D$|dt_bias|out_proj)"),
    ("attention", r"attn|attention|mixer\.[qkvo]_proj"),
    ("mlp", r"mlp|feed_forward|\.fc\d|latent_proj|mixer\.(up|down)_proj"),
)
KIMI_DELTA = "self_attn.conv1d.weight"  # a layer that has this is recurrent, though its module is called like attention


def part_of(name: str, recurrent: frozenset[str]) -> str:
    """The part of a parameter. `recurrent`: modules that are recurrent layers by another name."""
    found = next(part for part, pattern in PARTS if re.search(pattern, name))
    return "state" if found == "attention" and any(name.startswith(module) for module in recurrent) else found


def count(config: Document) -> dict[str, int]:
    """Parameters by part; one that several modules share counts once."""
    shapes = {name: tuple(each.shape) for name, each in build(config).named_parameters()}
    recurrent = frozenset(name.removesuffix("conv1d.weight") for name in shapes if name.endswith(KIMI_DELTA))
    parts: Counter[str] = Counter()
    for name, shape in shapes.items():
        parts[part_of(name, recurrent)] += math.prod(shape)
    return dict(sorted(parts.items()))


def build(config: Document) -> Any:
    """The model, without memory. Raises what transformers raises where it does not know it."""
    transformers = importlib.import_module("transformers")
    read = transformers.AutoConfig.for_model(**{name: value for name, value in config.items() if name != "auto_map"})
    kinds = [transformers.AutoModelForCausalLM]
    if config["model_type"] == "whisper":
        kinds = [transformers.AutoModelForSpeechSeq2Seq]
    elif "text_config" in config:
        kinds = [transformers.AutoModelForImageTextToText, *kinds]
    with importlib.import_module("torch").device("meta"):
        return _first(kinds, read)


def _first(kinds: list[Any], read: Any) -> Any:
    for kind in kinds[:-1]:
        if type(read) in kind._model_mapping:
            return kind.from_config(read)
    return kinds[-1].from_config(read)


def main(path: Path) -> None:
    recorded = json.loads(path.read_text())
    live = json.loads((path.parent / "live.json").read_text())["configs"]
    for entry in recorded["models"].values():
        entry["parameters"] = count(entry["config"])
    recorded["live"] = {name: count({**live[name], "pad_token_id": 0}) for name in recorded["live"]}
    recorded["transformers"] = importlib.import_module("transformers").__version__
    path.write_text(written(recorded))


def written(recorded: Document) -> str:
    """One line for each entry."""
    lines = [f'"transformers": {json.dumps(recorded["transformers"])}']
    for group in ("live", "models"):
        entries = ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in recorded[group].items())
        lines.append(f'"{group}": {{\n{entries}\n}}')
    return "{" + ",\n".join(lines) + "}\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
