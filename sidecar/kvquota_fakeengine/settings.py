"""What an engine is started with."""

from dataclasses import dataclass
from enum import StrEnum

# vLLM's defaults on a card: 16 tokens a block; 2,048 batched tokens is what it takes on the CPU.
DEFAULT_BLOCK_TOKENS = 16
DEFAULT_BATCHED_TOKENS = 2048


class Speech(StrEnum):
    """In whose words the engine speaks of itself: its metrics, and what it tells of its cache and its tokens."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """`blocks` are those of one data-parallel rank, the null block included; `ranks` have a pool each. `api_servers`
    behind one port say no more when they were started. Rates are tokens per second, of one sequence for decoding, of
    all for prefill.

    `answer_tokens` is how long an answer gets that no limit ends earlier. `freeing_delay_seconds` is how long the
    blocks of an aborted request stay held.
    """

    model: str = "fake"
    block_tokens: int = DEFAULT_BLOCK_TOKENS
    blocks: int = 1024
    ranks: int = 1
    api_servers: int = 1
    speech: Speech = Speech.VLLM
    max_model_len: int = 4096
    max_sequences: int = 256
    max_batched_tokens: int = DEFAULT_BATCHED_TOKENS
    by_priority: bool = False
    prompt_tokens_details: bool = True
    decode_rate: float = 200.0
    prefill_rate: float = 20_000.0
    answer_tokens: int = 128
    freeing_delay_seconds: float = 0.0
    kv_bytes_per_token: int = 131_072  # of Llama-3.1-8B in bfloat16

    def __post_init__(self) -> None:
        smallest = min(self.block_tokens, self.max_model_len, self.max_sequences, self.max_batched_tokens, self.ranks)
        if min(smallest, self.answer_tokens, self.api_servers) < 1 or min(self.decode_rate, self.prefill_rate) <= 0:
            raise ValueError("sizes and rates of an engine must be above 0")
        needed = -(-self.max_model_len // self.block_tokens) + 1
        if self.blocks < needed:
            raise ValueError(
                f"{self.blocks} blocks of {self.block_tokens} tokens do not hold one request of {self.max_model_len}"
                f" tokens: give the KV cache at least {needed} blocks, or lower the maximum model length"
            )
