"""A real vLLM on the CPU for tests, and the port through which tests see it and the fake engine alike."""
