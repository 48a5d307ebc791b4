"""Really start vLLM's engine once for each shape: `python -m testengine.oracle.starting FOLDER` in its own environment.

FOLDER/NAME.question.json is `{"config": …, "args": …}`. The engine of NAME loads dummy weights, lays its cache out in
memory and is ended again; FOLDER/NAME.log has what it printed, and FOLDER/NAME.blocks the blocks that it counts.
vLLM is imported once, and each engine has a process of its own.
"""

import json
import os
import sys
import traceback
from pathlib import Path

from testengine.oracle.building import part
from testengine.oracle.planning import engine_arguments, folder_with


def main(folder: Path) -> None:
    part("torch").set_num_threads(1)
    part("vllm.v1.engine.llm_engine")
    part("vllm.v1.worker.cpu_worker")
    for question in sorted(folder.glob("*.question.json")):
        child = os.fork()
        if child == 0:
            _start(question)
        os.waitpid(child, 0)


def _start(question: Path) -> None:
    """Never returns: the engine's threads are left behind with the process."""
    name = question.name.removesuffix(".question.json")
    log = os.open(question.with_name(f"{name}.log"), os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    asked = json.loads(question.read_text(encoding="utf-8"))
    try:
        with folder_with(asked["config"]) as model:
            blocks = _blocks_of_started(engine_arguments(model, asked["args"]))
            question.with_name(f"{name}.blocks").write_text(str(blocks), encoding="utf-8")
    except BaseException:  # noqa: BLE001 (the log says it, and the reader of the log misses the blocks)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)


def _blocks_of_started(arguments: object) -> int:
    usage = part("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER
    engine = part("vllm.v1.engine.llm_engine").LLMEngine.from_engine_args(arguments, usage_context=usage)
    return int(engine.vllm_config.cache_config.num_gpu_blocks)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
