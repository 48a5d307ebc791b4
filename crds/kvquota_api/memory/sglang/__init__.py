"""What SGLang makes of the memory that it is given for its KV cache: `planning.plan_cache`."""

from kvquota_api.memory.sglang.planning import plan_cache

__all__ = ["plan_cache"]
