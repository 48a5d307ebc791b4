"""How many tokens a frame of a stream stands for, by what the engine counted at the end of earlier streams.

Decides by how much the output of a stream grows with each of its frames. Pure.

Invariants:

1. A frame is at least one token and at most HIGHEST. It is one until a tenant's streams have shown FEWEST frames, and
   where it is less than NOTICEABLE more: an engine that has much to do joins two now and then.
2. A tenant learns from its own streams only: one that has its output hidden from the frames makes nobody else's grow.
3. What was learnt fades: the frames before the last WINDOW count half at most, so another setting of the engine, or
   another model, is followed.

Engines put several tokens into a frame where they are started so (vLLM: `--stream-interval`), and where they guess
tokens and check several at once. The mean is taken: what a single stream shows late of it is corrected at its end.

It does not know why tokens had no frame of their own.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from kvquota_api.amounts import Tokens

FEWEST: Final = 32  # frames: a few short answers
WINDOW: Final = 4096  # frames: some ten answers, so a change is followed within as many
HIGHEST: Final = 64.0  # tokens: far more than engines guess at once; an interval of more shows next to nothing
NOTICEABLE: Final = 0.05  # of a token
MAX_KNOWN: Final = 10_000  # tenants: as many as a config may have; 2 MiB


class Paces:
    """What is known of each tenant's streams."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[float, float]] = OrderedDict()  # frames and tokens

    def tokens_per_frame(self, tenant: str) -> float:
        """1.0 to HIGHEST."""
        frames, tokens = self._known.get(tenant, (0.0, 0.0))
        return tokens / frames if frames >= FEWEST and tokens > frames * (1 + NOTICEABLE) else 1.0

    def learn(self, tenant: str, frames: int, tokens: Tokens) -> None:
        """A stream has ended that counted as `frames` tokens by its frames, and had `tokens` by its engine."""
        if frames <= 0:
            return
        before = self._known.pop(tenant, (0.0, 0.0))
        kept = 0.5 if before[0] > WINDOW else 1.0
        self._known[tenant] = (before[0] * kept + frames, before[1] * kept + min(tokens, frames * HIGHEST))
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
