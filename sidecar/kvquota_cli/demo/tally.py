"""What the clients of one tenant were told. Pure.

Invariants:

1. Every request that was sent is counted once: answered, refused, failed, cut when an act ended, or running still.
2. The sentence kept for a refusal is one that a client got, word for word.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

Act = Literal["Counted", "Enforced"]


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal as the client got it. `status` 200: in a stream that had begun; 0: no answer at all, and then `code`
    says what broke."""

    status: int
    code: str
    message: str


@dataclass(slots=True)
class Tally:
    """`answered`: seconds to the first token of each whole answer, by act. `cut`: were running when an act ended."""

    sent: int = 0
    cut: int = 0
    answered: dict[Act, list[float]] = field(default_factory=lambda: {"Counted": [], "Enforced": []})
    refused: Counter[tuple[Act, int, str]] = field(default_factory=Counter)
    sentences: dict[tuple[int, str], Refused] = field(default_factory=dict)

    def answer(self, act: Act, seconds: float) -> None:
        """A request that was begun in `act` got a whole answer, the first token of it after `seconds`."""
        self.answered[act].append(seconds)

    def refuse(self, act: Act, refusal: Refused) -> None:
        """A request that was begun in `act` was refused."""
        self.refused[act, refusal.status, refusal.code] += 1
        self.sentences[refusal.status, refusal.code] = refusal

    @property
    def answers(self) -> int:
        return sum(map(len, self.answered.values()))

    @property
    def refusals(self) -> int:
        return self.refused.total()

    @property
    def running(self) -> int:
        """Requests that nothing has come of so far."""
        return self.sent - self.answers - self.refusals - self.cut

    def refused_with(self, code: str, act: Act) -> int:
        """How often this code was the answer to a request of `act`."""
        return sum(count for (when, _, what), count in self.refused.items() if (when, what) == (act, code))


def percentile(values: list[float], percent: float) -> float | None:
    """The nearest-rank percentile; None of nothing."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
