"""Asks the real vLLM for its own plan of the KV cache, for a model that is never loaded and a GPU that is not there."""
