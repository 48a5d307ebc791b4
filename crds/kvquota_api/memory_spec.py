"""How a pool's card is divided, as the spec states it.

Decides the fields and their defaults. Pure. Whether the parts fit is decided by `kvquota_api.memory.partition`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictInt

from kvquota_api.amounts import Bytes, Hundredths, Tokens, parse_percent, parse_quantity
from kvquota_api.memory.inputs import Platform
from kvquota_api.resource import Count, Model, Percent, Quantity
from kvquota_api.rules import exactly_one_of


class Gpu(Model):
    """The GPUs of one pod; all alike."""

    memory: Quantity
    """Memory of one card in bytes, as a quantity: 80Gi."""
    count: Annotated[StrictInt, Field(ge=1, le=1024)] = 1
    """Cards in one pod."""
    platform: Platform | None = None
    """What the engine computes on: NVIDIA cards by their architecture (cuda-sm80: A100, cuda-sm90: H100 and H200,
    cuda-sm100: B200), or cpu. Block sizes and other defaults of the engine depend on it. Default: cuda-sm90 where
    memory is 70Gi or more, else cuda-sm80."""

    @property
    def memory_bytes(self) -> Bytes:
        """Memory of one card in bytes."""
        return parse_quantity(self.memory)


class Remainder(Model):
    """Whatever the other parts of the card leave."""


class KvPool(Model):
    """The KV cache on one card: exactly one of percent, bytes, tokens, remainder."""

    percent: Percent | None = None
    """Percent of the card's memory with at most two decimals; write decimals in quotes: "2.5"."""
    bytes: Quantity | None = None
    """Bytes on one card, as a quantity: 36Gi."""
    tokens: Count | None = None
    """Tokens of context that fit at the same time; rounded up to whole blocks."""
    remainder: Remainder | None = None
    """Whatever the other parts of the card leave: {}."""

    one_value = True
    rules = (exactly_one_of("percent", "bytes", "tokens", "remainder"),)

    @property
    def hundredths(self) -> Hundredths | None:
        """The percent in hundredths; None when the pool is stated otherwise."""
        return None if self.percent is None else parse_percent(self.percent)

    @property
    def byte_count(self) -> Bytes | None:
        """The bytes as a number; None when the pool is stated otherwise."""
        return None if self.bytes is None else parse_quantity(self.bytes)

    @property
    def token_count(self) -> Tokens | None:
        """The tokens; None when the pool is stated otherwise."""
        return None if self.tokens is None else Tokens(self.tokens)


class Memory(Model):
    """The partition of one card; applied to the engine, not only drawn."""

    kv_pool: KvPool = KvPool(percent=30)
    """The KV cache: the hard cap of everything that tenants can hold."""
    weights: Quantity | None = None
    """The model's weights on one card in bytes, as a quantity: 14.99Gi. Default: counted from the model's config and
    weightDtype."""
    activation: Quantity | None = None
    """Peak of what a step needs beside weights and KV cache, in bytes on one card, as a quantity: 6Gi. Default:
    estimated from the model."""
    other: Quantity | None = None
    """CUDA context, graphs and communication buffers in bytes on one card, as a quantity: 1.5Gi. Default: estimated."""
    safety_margin_percent: Annotated[StrictInt, Field(ge=0, le=50)] = 8
    """Percent of the card that is left alone; 5 to 10 is sensible."""

    @property
    def weight_bytes(self) -> Bytes | None:
        """The stated weights in bytes; None when they are to be counted."""
        return None if self.weights is None else parse_quantity(self.weights)

    @property
    def activation_bytes(self) -> Bytes | None:
        """The stated activation in bytes; None when it is to be estimated."""
        return None if self.activation is None else parse_quantity(self.activation)

    @property
    def other_bytes(self) -> Bytes | None:
        """The stated rest in bytes; None when it is to be estimated."""
        return None if self.other is None else parse_quantity(self.other)
