"""What a test knows of an engine, be it the real one or the fake."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUnderTest:
    """`base_url` has no slash at its end; `blocks` includes the null block; `max_model_len` is in tokens."""

    name: str
    base_url: str
    model: str
    block_tokens: int
    blocks: int
    max_model_len: int
