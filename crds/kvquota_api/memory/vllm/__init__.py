"""What vLLM makes of the memory that it is given for its KV cache: `planning.plan_cache`."""

from kvquota_api.memory.vllm.planning import plan_cache

__all__ = ["plan_cache"]
