"""An engine for demonstrations and tests: it speaks like vLLM and really allocates blocks."""
