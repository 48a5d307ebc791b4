"""The estimate against real tokenizers: those that come with the engine's environment, on texts of all kinds."""

from __future__ import annotations

import json
import random
import subprocess
import sysconfig
from pathlib import Path

import pytest

from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.ratio import Ratios
from kvquota_sidecar.estimate.shape import Shape, read_shape
from testengine.environment import engine_python

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
CHAT = "/v1/chat/completions"
TEMPLATE = 12  # tokens: what Mistral's template puts around one message, and a little more
# Reads a list of texts, writes their tokens by each tokenizer.
COUNT = """
import json, sys
from pathlib import Path
import mistral_common, sentencepiece
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
data = Path(mistral_common.__file__).parent / "data"
tekken = Tekkenizer.from_file(data / "tekken_240911.json")
pieces = sentencepiece.SentencePieceProcessor(model_file=str(data / "mistral_instruct_tokenizer_240323.model.v3"))
texts = json.load(sys.stdin)
json.dump({
    "tekken": [len(tekken.encode(text, bos=False, eos=False)) for text in texts],
    "sentencepiece": [len(pieces.encode(text)) for text in texts],
}, sys.stdout)
"""


def texts() -> list[str]:
    """Pieces of 200 to 30,000 characters of Markdown, Python, JSON, YAML and HTML, shuffled, the same every time.

    The Markdown is what the locked packages say of themselves: pages of this repository change too often.
    """
    chance = random.Random(7)
    library, packages = (Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib"))
    kinds = [
        sorted(packages.glob("*.dist-info/METADATA")),
        sorted(library.glob("*.py")),
        sorted((ROOT / "tests" / "data").rglob("*.json")),
        sorted((ROOT / "crds").glob("*.yaml")),
        [ROOT / "LICENSE"],
    ]
    pieces = []
    for files in kinds:
        whole = "\n".join(path.read_text(errors="replace")[:200_000] for path in files[:40])
        for _ in range(50):
            size = min(len(whole) // 2, round(10 ** chance.uniform(2.3, 4.5)))
            start = chance.randrange(len(whole) - size)
            pieces.append(whole[start : start + size])
    chance.shuffle(pieces)
    return pieces


def test_the_median_error_is_below_a_tenth_once_it_has_learnt() -> None:
    pieces = texts()
    done = subprocess.run(
        [engine_python(), "-c", COUNT],
        input=json.dumps(pieces),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    for tokenizer, counts in json.loads(done.stdout).items():
        ratios = Ratios()
        errors = []
        for text, count in zip(pieces, counts, strict=True):
            shape = read_shape(CHAT, json.dumps({"messages": [{"role": "user", "content": text}]}).encode())
            assert isinstance(shape, Shape)
            true = count + TEMPLATE
            assert ratios.most(shape.prompts[0]) >= true
            errors.append(abs(ratios.estimate("a/t", shape.prompts[0]) / true - 1))
            ratios.learn("a/t", shape.prompts, Tokens(true))
        late = sorted(errors[len(errors) // 3 :])
        assert late[len(late) // 2] < 0.1, tokenizer
        told = ratios.error("a/t")
        assert told is not None
        last = sorted(errors[-told.count :])
        assert told.p50 == pytest.approx(last[len(last) // 2], abs=0.01)
