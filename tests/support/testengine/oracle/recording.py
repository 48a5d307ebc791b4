"""Ask vLLM again for every plan of a file and write it anew: `python -m testengine.oracle.recording FILE`.

FILE is `{"configs": {name: config}, "rows": […], "refusals": […]}`. A question is a row's `config` (a name) and `args`;
a row has vLLM's `resolved` and `result`, a refusal the class and first line of its `error`. To add a question, write
it as a row without an answer. A row that vLLM refuses becomes a refusal, and the other way round.
"""

import json
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from testengine.oracle.asking import Oracle

Document = dict[str, Any]

_QUESTION = ("id", "arch", "hf_architecture", "config", "args", "method")
_MESSAGE_CHARACTERS = 160


def main(path: Path) -> None:
    recorded: Document = json.loads(path.read_text(encoding="utf-8"))
    questions = [*recorded["rows"], *recorded.get("refusals", [])]
    answered = sorted(_answered(recorded["configs"], questions), key=lambda row: str(row["id"]))
    rows = [row for row in answered if "error" not in row]
    refusals = [row for row in answered if "error" in row]
    fresh = path.with_suffix(".json.new")
    fresh.write_text(written(recorded["configs"], rows, refusals), encoding="utf-8")
    fresh.replace(path)


def written(configs: Document, rows: list[Document], refusals: list[Document]) -> str:
    """The file's text: one config, one row, one refusal a line."""
    named = [f"{json.dumps(name)}: {_compact(config)}" for name, config in sorted(configs.items())]
    parts = (named, map(_compact, rows), map(_compact, refusals))
    first, second, third = (",\n".join(part) for part in parts)
    return f'{{"configs": {{\n{first}\n}},\n"rows": [\n{second}\n],\n"refusals": [\n{third}\n]}}\n'


def _answered(configs: Document, questions: list[Document]) -> Iterable[Document]:
    for platform in sorted({str(question["args"]["platform"]) for question in questions}):
        with tempfile.TemporaryDirectory() as folder, Oracle(platform, Path(folder) / "oracle.log") as oracle:
            for question in questions:
                if question["args"]["platform"] == platform:
                    kept = {name: question[name] for name in _QUESTION if name in question}
                    yield kept | _answer(oracle.ask(configs[question["config"]], question["args"]))


def _answer(answer: Document) -> Document:
    if "error" not in answer:
        return answer
    return {"error": {"class": answer["error"]["class"], "message": _first_line(answer["error"])}}


def _first_line(error: Document) -> str:
    """What the refusal says: of a validation error the line after its heading, and no names of passing folders."""
    lines = [line.strip() for line in str(error["message"]).splitlines() if line.strip()] or [""]
    line = lines[1] if error["class"] == "ValidationError" and len(lines) > 1 else lines[0]
    said = re.sub(r"\[type=.*$", "", line).strip()
    return re.sub(r"\S*kvquota-oracle-\w+", "MODEL", said)[:_MESSAGE_CHARACTERS]


def _compact(document: Document) -> str:
    return json.dumps(document, separators=(",", ":"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
