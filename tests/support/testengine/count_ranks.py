"""Count what one GPU of a tensor group holds of a model in vLLM: what tests/data/memory/ranks.json records.

Runs in the engine's environment, with the file as its argument:

    cd tests/support && ENGINE_PYTHON -m testengine.count_ranks ../data/memory/ranks.json

Each row's model is built as vLLM's own class for a pretended H100, on torch's meta device, as the first rank of a group
of `tensor` GPUs, and its `parameters` are written; a row that has them from the same version is left alone. A row has a
config, or the name of one of live.json or of parameters.json beside the file; `changes` are made to it. Nothing is
quantised.
"""

import importlib
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from testengine.oracle.building import card_as_meta, part
from testengine.oracle.planning import _know_kind, engine_arguments, folder_with
from testengine.oracle.pretending import CARDS, pretend, pretend_media
from testengine.oracle.ranks import stand_at

Document = dict[str, Any]


def count(config: Document, tensor: int) -> int:
    """Parameters on the first rank; one that several modules share counts once."""
    _know_kind(config)
    with folder_with(config) as folder:
        usage = part("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER
        arguments = engine_arguments(folder, {"tp": tensor, "dtype": "bfloat16"})
        engine = arguments.create_engine_config(usage_context=usage)
        stand_at(engine.parallel_config, 0)
        part("vllm.v1.worker.workspace").init_workspace_manager(part("torch").device("meta"))
        with part("vllm.config").set_current_vllm_config(engine):
            model = _build(engine)
    return sum(math.prod(each.shape) for each in model.parameters())


def _build(engine: Any) -> Any:
    model, loading = engine.model_config, part("vllm.model_executor.model_loader.utils")
    as_the_model = part("vllm.utils.torch_utils").set_default_torch_dtype(model.dtype)
    with as_the_model, part("torch").device("meta"), card_as_meta():
        return loading.initialize_model(vllm_config=engine, model_config=model, prefix="")


def count_apart(config: Document, tensor: int) -> int:
    """In a process of its own: vLLM keeps what it was once configured with."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writer, "w") as answer:
            answer.write(str(count(config, tensor)))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return int(said)


def main(path: Path) -> None:
    recorded = json.loads(path.read_text())
    named = json.loads((path.parent / "live.json").read_text())["configs"]
    named |= {
        name: model["config"]
        for name, model in json.loads((path.parent / "parameters.json").read_text())["models"].items()
    }
    pretend(CARDS["cuda-sm90"])
    # A model's class is looked at in this process: another one would import all of vLLM again for each row.
    part("vllm.model_executor.models.registry")._run_in_subprocess = lambda inspect: inspect()
    for name in ("vllm.engine.arg_utils", "vllm.model_executor.model_loader.utils", "vllm.v1.worker.gpu_model_runner"):
        part(name)
    pretend_media()
    version = importlib.import_module("vllm").__version__
    for row in recorded["rows"]:
        if recorded["vllm"] == version and "parameters" in row:
            continue
        config = row["config"] if "config" in row else named[row["name"]]
        row["parameters"] = count_apart({**config, **row.get("changes", {})}, row["tensor"])
    recorded["vllm"] = version
    rows = ",\n".join(json.dumps(row) for row in recorded["rows"])
    path.write_text(f'{{"vllm": {json.dumps(version)},\n"rows": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]))
