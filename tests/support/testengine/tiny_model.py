"""The tiny model that the real engine serves: a Llama of two layers, its tokenizer and chat template.

The weights are the engine's own dummies (`--load-format dummy`, the same in every run), so the directory holds only
three small JSON files, made here without any library of the engine's.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from testengine.byte_pair import byte_symbols, learn_merges
from testengine.cache import cache_root

# Layers, key-value heads and head size decide the bytes of a token: 2 × (K and V) × 2 heads × 64 × 2 bytes = 1 KiB.
# The engine's kernels for the CPU refuse a head size of 16 at the first request.
LAYERS = 2
KV_HEADS = 2
HEAD_SIZE = 64
KV_BYTES_PER_TOKEN = 2 * LAYERS * KV_HEADS * HEAD_SIZE * 2

_SPECIAL_TOKENS = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
_MERGES = 508
_END, _PADDED_VOCABULARY = 0, len(_SPECIAL_TOKENS) + 256 + _MERGES

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def tiny_model() -> Path:
    """The model's directory, written into the cache at the first call; its name is the digest of what is in it."""
    files = _files()
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]
    directory = cache_root() / "tiny-model" / digest
    if not directory.is_dir():
        _write_at_once(directory, files)
    return directory


def _files() -> dict[str, Any]:
    corpus = (Path(__file__).parent / "corpus.txt").read_text(encoding="utf-8")
    return {
        "config.json": _model_config(),
        "tokenizer.json": _tokenizer(corpus),
        "tokenizer_config.json": _tokenizer_config(),
    }


def _write_at_once(directory: Path, files: dict[str, Any]) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    half_made = Path(tempfile.mkdtemp(dir=directory.parent))
    for name, content in files.items():
        (half_made / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    try:
        half_made.rename(directory)
    except OSError:
        if not directory.is_dir():  # else somebody else was faster, with the same content
            raise


def _model_config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": _PADDED_VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": _END,
        "eos_token_id": _END,
    }


def _tokenizer(corpus: str) -> dict[str, Any]:
    merges = learn_merges(corpus, _MERGES)
    symbols = [*_SPECIAL_TOKENS, *byte_symbols().values(), *(left + right for left, right in merges)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(number, name) for number, name in enumerate(_SPECIAL_TOKENS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {symbol: number for number, symbol in enumerate(symbols)},
            "merges": [list(pair) for pair in merges],
        },
    }


def _added_token(number: int, name: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": number, "content": name, **flags}


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL_TOKENS[_END],
        "eos_token": _SPECIAL_TOKENS[_END],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
        "chat_template": _CHAT_TEMPLATE,
    }
