"""Of how much of an answer an engine's `usage` speaks.

Decides from the engine and the number of prompts. Pure.

Invariants:

1. What an engine counts is taken for the whole unless it is known to count less: then it is made whole, or where that
   cannot be done, not believed.

Looked at in llama.cpp's server (build 11549). Every output of a stream has its own `usage` behind its own last frame,
which holds no token; an answer that is one JSON object has that of its first output alone. The others' are not known
then, and taken to be as long.
"""

from __future__ import annotations

from typing import Literal

Scope = Literal["Answer", "Output", "Prompt"]
"""`Answer`: all of it. `Output`: one output of the one prompt. `Prompt`: one output of one of several prompts."""


def usage_scope(engine: str, prompts: int) -> Scope:
    """Of an engine's `usage`, where so many prompts were asked for."""
    if engine != "LlamaCpp":
        return "Answer"
    return "Output" if prompts == 1 else "Prompt"
