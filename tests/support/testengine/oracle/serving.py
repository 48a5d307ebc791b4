"""Answer one question a line: `python -m testengine.oracle.serving PLATFORM` in the engine's own environment.

In: `{"config": …, "args": …}`, out: `{"resolved": …, "result": …}` or `{"error": {"class", "message"}}`
where vLLM refuses. vLLM is imported once; each question is answered by a child of its own, since vLLM keeps what it was
once configured with.
"""

import json
import os
import select
import signal
import sys
import traceback
from typing import Any, TextIO

from testengine.oracle.building import part
from testengine.oracle.planning import plan
from testengine.oracle.pretending import CARDS, pretend, pretend_media
from testengine.oracle.ranks import be_on_one_machine

# The largest models take 10 s on an idle core; what takes longer hangs.
_ANSWER_SECONDS = 180.0


def main(platform: str) -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # vLLM and its libraries print; answers must stay alone
    if platform in CARDS:
        pretend(CARDS[platform])
    _import_engine()
    pretend_media()
    _say(answers, {"ready": platform})
    for line in sys.stdin:
        question = json.loads(line)
        _import_model(question["config"])
        _say(answers, _answer_of_child(question))


def _say(answers: TextIO, document: dict[str, Any]) -> None:
    answers.write(json.dumps(document) + "\n")
    answers.flush()


def _import_engine() -> None:
    part("torch").set_num_threads(1)
    be_on_one_machine()
    registry = part("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda inspect: inspect()
    for name in (
        "vllm.engine.arg_utils",
        "vllm.model_executor.model_loader.utils",
        "vllm.v1.core.kv_cache_utils",
        "vllm.v1.worker.gpu_model_runner",
    ):
        part(name)


def _import_model(config: dict[str, Any]) -> None:
    """Import the model's module ahead of the fork, so that only the first question about it pays."""
    known = part("vllm.model_executor.models.registry").ModelRegistry.models
    for architecture in config.get("architectures") or []:
        if architecture in known:
            try:
                known[architecture].load_model_cls()
            except Exception:  # noqa: BLE001 (the child meets it again and reports it)
                traceback.print_exc()


def _answer_of_child(question: dict[str, Any]) -> dict[str, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with os.fdopen(writer, "w", encoding="utf-8") as answer:
            json.dump(_answer(question), answer)
        sys.stderr.flush()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer_of_child:
        written = _read_for(answer_of_child.fileno(), _ANSWER_SECONDS)
    if written is None:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not written:
        return {"error": {"class": "NoAnswer", "message": "the engine's process ended or hung"}}
    document: dict[str, Any] = json.loads(written)
    return document


def _read_for(source: int, seconds: float) -> bytes | None:
    """Everything until the other end closes, or nothing where it is silent for too long."""
    parts: list[bytes] = []
    while select.select([source], [], [], seconds)[0]:
        more = os.read(source, 1 << 16)
        if not more:
            return b"".join(parts)
        parts.append(more)
    return None


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    try:
        return plan(question["config"], question["args"])
    except BaseException as error:  # noqa: BLE001 (a refusal is an answer, of whatever class)
        traceback.print_exc()
        return {"error": {"class": type(error).__name__, "message": str(error) or _last_line(error)}}


def _last_line(error: BaseException) -> str:
    """The line of code that refused, for an assertion without a message."""
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].line or "" if frames else ""


if __name__ == "__main__":
    main(sys.argv[1])
