"""What the state machines of the books share: pools that get full, and how far each machine has to go."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import hypothesis.strategies as st
from hypothesis import settings

import machines
from bookkeeping import BLOCK, share
from kvquota_api.pod_config import TenantShare
from ledger_engine import CHUNK_BYTES, Text
from machines import Counting, Run

NAMES = ("search", "batch", "night")
USABLE = 200
CONTEXT = 64 * BLOCK
OUTPUT = st.sampled_from([BLOCK, 4 * BLOCK, 8 * BLOCK])  # tokens
TIMES = st.sampled_from([(60, 60, 60), (8, 60, 60), (5, 10, 60)])  # that each of three tenants asks

MOST_WAIT = 4  # at once: enough for an order of arrival
MOST_RUN = 80  # of one flood, more than the pool has room for: in Shadow nothing is refused, and each step looks at all
SHORT = Run(settings(max_examples=60, stateful_step_count=40), steps=1000)
# With each of the four machines; an example takes 118 of its steps, by the mean.
LONG = Run(settings(max_examples=2_400, stateful_step_count=125), steps=250_000)

HOW = ("estimated", "estimated", "exact", "too late")  # the tokens of a prompt are known, if they are asked for


@dataclass(frozen=True)
class Terms:
    """Of one request. `limit`: tokens of each output. `seen`: it is streamed. `how`: one of HOW."""

    limit: int | None
    copies: int
    seen: bool
    how: str


TERMS = st.sampled_from(
    [Terms(*each) for each in product([None, 0, 1, BLOCK, 10 * BLOCK, 30 * BLOCK], [1, 1, 1, 2, 4], [False, True], HOW)]
)

LONGEST = 6  # chunks of a text


def _letters(menu: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    """Up to LONGEST letters by one number: draws are what a step costs most. The smallest is the empty text."""

    def letters(number: int) -> tuple[int, ...]:
        number, count = divmod(number, LONGEST + 1)
        return tuple(menu[number // len(menu) ** place % len(menu)] for place in range(count))

    return st.integers(0, (LONGEST + 1) * len(menu) ** LONGEST - 1).map(letters)


tails = st.integers(0, CHUNK_BYTES - 1)
texts = st.builds(Text, _letters((0, 0, 0, 1, 2, 3, 4)), tails)
usual_texts = st.builds(Text, _letters((0, 0, 1)), tails)
lists = st.lists(texts, min_size=1, max_size=3).map(tuple)
usual_lists = st.lists(usual_texts, min_size=1, max_size=3).map(tuple)


@st.composite
def quotas(draw: st.DrawFn, enforcement: st.SearchStrategy[str]) -> tuple[TenantShare, ...]:
    def one(name: str) -> TenantShare:
        soft = draw(st.sampled_from([50, 50, 60, 20, 0]))
        return share(
            name,
            priority=draw(st.sampled_from([0, 10, 100])),
            soft_blocks=soft,
            hard_blocks=soft + draw(st.sampled_from([150, 150, 150, 30, 0])),
            max_concurrent_requests=draw(st.sampled_from([None, None, None, 4, 12])),
            max_context_tokens=draw(st.sampled_from([None, None, 40 * BLOCK])),
            enforcement=draw(enforcement),
        )

    names = draw(st.sampled_from([NAMES, NAMES, NAMES, NAMES[:2], NAMES[1:]]))
    return tuple(one(name) for name in names)


def explore(machine: type[Counting]) -> None:
    """Run it as the profile says."""
    machines.explore(machine, short=SHORT, long=LONG, must=("waited", "admitted after a wait", "evicted"))
