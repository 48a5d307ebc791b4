"""The tiny model as a GGUF file: the same vocabulary and chat template as vLLM's, and random weights.

Written by hand, as the format is a header, typed pairs and arrays. Source: the specification in ggml's docs/gguf.md.
"""

import hashlib
import json
import os
import random
import struct
import tempfile
from array import array
from pathlib import Path

from testengine.cache import cache_root
from testengine.tiny_model import tiny_model

LAYERS, EMBEDDING, HEADS, KV_HEADS, FEED_FORWARD = 2, 64, 4, 2, 128
CONTEXT = 131072  # tokens
_ALIGNMENT = 32  # bytes; the format's default
_VERSION = 3
_F32 = 0  # ggml's number of the type
_UINT32, _INT32, _FLOAT32, _STRING, _ARRAY = 4, 5, 6, 8, 9  # GGUF's numbers of the types of a value
_NORMAL, _CONTROL = 1, 3  # kinds of tokens
_SPREAD = 0.05  # of the weights: larger ones give one token for ever

Shape = tuple[int, ...]


def tiny_gguf() -> Path:
    """The file, written into the cache at the first call; its name is the digest of what is in it."""
    content = _content()
    path = cache_root() / "tiny-model" / f"{hashlib.sha256(content).hexdigest()[:16]}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, half_made = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(half_made).replace(path)
    return path


def _content() -> bytes:
    pairs, tensors = _pairs(), _tensors()
    head = b"GGUF" + struct.pack("<IQQ", _VERSION, len(tensors), len(pairs))
    infos, offset = b"", 0
    for name, shape in tensors.items():
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos += _text(name) + sizes + struct.pack("<IQ", _F32, offset)
        offset += _padded(4 * _elements(shape))
    start = head + b"".join(pairs) + infos
    dice = random.Random(1)
    body = b"".join(_weights(name, shape, dice) for name, shape in tensors.items())
    return start.ljust(_padded(len(start)), b"\0") + body


def _pairs() -> list[bytes]:
    model = json.loads((tiny_model() / "tokenizer.json").read_text(encoding="utf-8"))
    said = json.loads((tiny_model() / "tokenizer_config.json").read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = model["model"]["vocab"]
    special = {each["content"] for each in model["added_tokens"]}
    symbols = sorted(vocabulary, key=lambda symbol: vocabulary[symbol])
    kinds = [_CONTROL if each in special else _NORMAL for each in symbols]
    numbers = {
        "context_length": CONTEXT, "embedding_length": EMBEDDING, "block_count": LAYERS,
        "feed_forward_length": FEED_FORWARD, "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
        "rope.dimension_count": EMBEDDING // HEADS, "vocab_size": len(symbols),
    }  # fmt: skip
    ends = {f"tokenizer.ggml.{each}_token_id": vocabulary[said[f"{each}_token"]] for each in ("bos", "eos")}
    texts = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.chat_template": said["chat_template"],
    }
    return [
        *(_pair(name, _STRING, _text(value)) for name, value in texts.items()),
        *(_pair(f"llama.{name}", _UINT32, struct.pack("<I", value)) for name, value in numbers.items()),
        *(_pair(name, _UINT32, struct.pack("<I", value)) for name, value in ends.items()),
        _pair("llama.attention.layer_norm_rms_epsilon", _FLOAT32, struct.pack("<f", 1e-5)),
        _list("tokenizer.ggml.tokens", _STRING, [_text(each) for each in symbols]),
        _list("tokenizer.ggml.merges", _STRING, [_text(" ".join(each)) for each in model["model"]["merges"]]),
        _list("tokenizer.ggml.token_type", _INT32, [struct.pack("<i", each) for each in kinds]),
    ]


def _tensors() -> dict[str, Shape]:
    """By name, the innermost size first."""
    tokens = len(json.loads((tiny_model() / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"])
    narrow = EMBEDDING // HEADS * KV_HEADS
    of_a_layer: dict[str, Shape] = {
        "attn_norm": (EMBEDDING,), "ffn_norm": (EMBEDDING,), "attn_q": (EMBEDDING, EMBEDDING),
        "attn_k": (EMBEDDING, narrow), "attn_v": (EMBEDDING, narrow), "attn_output": (EMBEDDING, EMBEDDING),
        "ffn_gate": (EMBEDDING, FEED_FORWARD), "ffn_up": (EMBEDDING, FEED_FORWARD),
        "ffn_down": (FEED_FORWARD, EMBEDDING),
    }  # fmt: skip
    layers = {f"blk.{at}.{name}.weight": shape for at in range(LAYERS) for name, shape in of_a_layer.items()}
    ends: dict[str, Shape] = {
        "token_embd.weight": (EMBEDDING, tokens),
        "output_norm.weight": (EMBEDDING,),
        "output.weight": (EMBEDDING, tokens),
    }
    return {**ends, **layers}


def _weights(name: str, shape: Shape, dice: random.Random) -> bytes:
    count = _elements(shape)
    values = array("f", [1.0] * count if "norm" in name else [dice.gauss(0, _SPREAD) for _ in range(count)])
    return values.tobytes().ljust(_padded(4 * count), b"\0")


def _pair(name: str, kind: int, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", kind) + value


def _list(name: str, kind: int, values: list[bytes]) -> bytes:
    return _pair(name, _ARRAY, struct.pack("<IQ", kind, len(values)) + b"".join(values))


def _text(value: str) -> bytes:
    content = value.encode()
    return struct.pack("<Q", len(content)) + content


def _elements(shape: Shape) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
