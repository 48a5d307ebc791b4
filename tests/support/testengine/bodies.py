"""Bodies of requests to an engine that serves the tiny model."""

from typing import Any

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"

# Few enough tokens to be quick, enough to see a stream.
OUTPUT_TOKENS = 6


def chat(**more: Any) -> dict[str, Any]:
    """A short conversation that is answered with `OUTPUT_TOKENS` tokens, changed by `more`."""
    body: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello there"}]}
    return body | {"max_tokens": OUTPUT_TOKENS, "ignore_eos": True} | more


def completion(**more: Any) -> dict[str, Any]:
    """A short prompt that is answered with `OUTPUT_TOKENS` tokens, changed by `more`."""
    body: dict[str, Any] = {"model": "tiny", "prompt": "Hello there"}
    return body | {"max_tokens": OUTPUT_TOKENS, "ignore_eos": True} | more


def distinct_prompt(number: int, tokens: int) -> list[int]:
    """A prompt of token ids that shares no block with that of another number."""
    return [16 + number] * tokens
