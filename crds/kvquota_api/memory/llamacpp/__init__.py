"""What llama.cpp needs for its KV cache: `planning.plan_cache`."""

from kvquota_api.memory.llamacpp.planning import plan_cache

__all__ = ["plan_cache"]
