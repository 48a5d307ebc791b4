"""What a client is told of its own case, word for word."""

from __future__ import annotations

from typing import Any

import pytest

from admission_cases import case
from kvquota_api.amounts import Tokens
from kvquota_sidecar.admission.case import Case, Known
from kvquota_sidecar.admission.rules import decide
from kvquota_sidecar.records import replace
from kvquota_sidecar.refusals import Refusal


def told(asked: Case) -> str:
    verdict = decide(asked)
    assert isinstance(verdict, Refusal), verdict
    return verdict.message


def pooling(**how: Any) -> Case:
    """A request that only goes through the model."""
    made = case(**how)
    demand = replace(made.demand, kind="Pool", output_limit=Tokens(0))
    return replace(made, demand=demand)


def estimated(known: Known, made: Case) -> Case:
    """A request whose prompts are not known exactly."""
    return replace(made, demand=replace(made.demand, known=known))


OVER_HARD = "The request needs 4,800 tokens of KV cache and TenantQuota search (spec.kv.hard) allows 1,760."


def lent_no_more(soft: str) -> str:
    return (
        f"The request needs 1,440 tokens of KV cache and the guaranteed share of TenantQuota search (spec.kv.soft) is "
        f"{soft}; ModelPool llama-8b (spec.degradation: guaranteeReservePercent and shed.enterPercent) lends no "
        "request this much beyond it."
    )


def beyond(share: str, why: str) -> str:
    return (
        f"The request goes beyond the guaranteed share of tenant inference/search ({share} tokens) and the pool {why}"
    )


def within(asks: str, room: str) -> str:
    return (
        f"The request is within the guaranteed share of tenant inference/search and asks for {asks} tokens of KV "
        f"cache, but the pool had room for {room} and no more came free in time."
    )


def holds(held: str, hard: str, asks: str) -> str:
    return (
        f"Tenant inference/search holds {held} tokens of KV cache, its hard quota is {hard}, and this request asks for "
        f"{asks}."
    )


SENTENCES = [
    pytest.param(
        case(prompt=40_000, output=None),
        "The request may become 40,001 tokens long (40,000 of input and 1 of output) and ModelPool llama-8b "
        "(spec.model.maxModelLen) allows 32,768. Shorten the input or lower max_tokens by about 7,233 tokens.",
        id="longer than the model's context",
    ),
    pytest.param(
        case(prompt=500, output=300, max_context_tokens=640),
        "The request may become 800 tokens long (500 of input and 300 of output) and TenantQuota search "
        "(spec.maxContextTokens) allows 640. Shorten the input or lower max_tokens by about 160 tokens.",
        id="longer than the tenant's context",
    ),
    pytest.param(
        pooling(prompt=700, max_context_tokens=640),
        "The request may become 700 tokens long (all of it input) and TenantQuota search (spec.maxContextTokens) "
        "allows 640. Shorten the input by about 60 tokens.",
        id="a text to embed that is longer than the tenant's context",
    ),
    pytest.param(
        case(full=300, hard_blocks=110),
        f"{OVER_HARD} Shorten the input or lower max_tokens by about 3,040 tokens.",
        id="larger than hard",
    ),
    pytest.param(
        case(full=300, sequences=2, hard_blocks=110),
        f"{OVER_HARD} Split it, lower n, or shorten the input or lower max_tokens, by about 3,040 tokens in all.",
        id="several sequences that are larger than hard together",
    ),
    pytest.param(
        case(full=300, output=None, hard_blocks=110),
        f"{OVER_HARD} It sets no max_tokens, so the longest answer counts. "
        "Shorten the input or lower max_tokens by about 3,040 tokens.",
        id="without a limit larger than hard",
    ),
    pytest.param(
        pooling(full=300, sequences=8),
        "The request needs 4,800 tokens of KV cache and ModelPool llama-8b (spec.memory.kvPool) has 1,600. "
        "Split the list of inputs, or shorten them.",
        id="a list to embed that is larger than the pool",
    ),
    pytest.param(
        case(full=60, rank_usable=50),
        "The request needs 960 tokens of KV cache and each rank of ModelPool llama-8b (spec.memory.kvPool) has 800. "
        "Shorten the input or lower max_tokens by about 160 tokens.",
        id="larger than a rank",
    ),
    pytest.param(
        case(reserve=90, soft=20),
        f"{lent_no_more('320')} Shorten the input or lower max_tokens by about 96 tokens.",
        id="more than an idle pool lends: it lends 84 blocks",
    ),
    pytest.param(
        case(reserve=90, soft=88),
        f"{lent_no_more('1,408')} Shorten the input or lower max_tokens by about 32 tokens.",
        id="more than an idle pool lends: the guaranteed share is more than that",
    ),
    pytest.param(
        case(sequences=9, max_concurrent_requests=8),
        "The request has 9 sequences (prompts times n) and TenantQuota search (spec.maxConcurrentRequests) allows 8. "
        "Split it or lower n.",
        id="more sequences than ever",
    ),
    pytest.param(
        case(running=8, max_concurrent_requests=8),
        "Tenant inference/search runs 8 of at most 8 sequences and this request has 1. Wait until one of them has "
        "ended.",
        id="one sequence too many",
    ),
    pytest.param(
        case(sequences=3, running=7, max_concurrent_requests=8),
        "Tenant inference/search runs 7 of at most 8 sequences and this request has 3. "
        "Wait until 2 of them have ended, or send 2 fewer (prompts times n).",
        id="two sequences too many, of three",
    ),
    pytest.param(
        estimated("About", case(prompt=500, output=300, max_context_tokens=640)),
        "The request may become 800 tokens long (about 500 of input and 300 of output) and TenantQuota search "
        "(spec.maxContextTokens) allows 640. Shorten the input or lower max_tokens by about 160 tokens.",
        id="an estimate that is longer than the tenant's context",
    ),
    pytest.param(
        estimated("About", pooling(prompt=700, max_context_tokens=640)),
        "The request may become about 700 tokens long (all of it input) and TenantQuota search (spec.maxContextTokens) "
        "allows 640. Shorten the input by about 60 tokens.",
        id="a text to embed that is estimated to be longer than the tenant's context",
    ),
    pytest.param(
        estimated("AtLeast", case(full=300, hard_blocks=110)),
        "The request needs at least 4,800 tokens of KV cache and TenantQuota search (spec.kv.hard) allows 1,760. "
        "Shorten the input or lower max_tokens by about 3,040 tokens.",
        id="whatever its prompt holds larger than hard",
    ),
    pytest.param(
        estimated("About", case(reserve=100, held=1200, requests=4, hard_blocks=1010, usable=2000)),
        f"{holds('19,200', '16,160', 'about 1,600')} Wait for one of your 4 running requests to end.",
        id="hard: by an estimate no length would do",
    ),
    pytest.param(
        estimated("About", case(reserve=10, soft=10, free=3)),
        f"{within('about 160', '48')} Shorten the input by about 112 tokens, or retry.",
        id="guaranteed by an estimate, with some room",
    ),
    pytest.param(
        case(prompt=4000, reserve=300, held=900, requests=4, hard_blocks=1010, usable=2000),
        f"{holds('14,400', '16,160', '4,800')} "
        "Shorten the input by about 3,040 tokens, or wait for one of your 4 running requests to end.",
        id="hard: a shorter input would do",
    ),
    pytest.param(
        case(prompt=1000, reserve=300, held=900, requests=1, hard_blocks=1010, usable=2000),
        f"{holds('14,400', '16,160', '4,800')} "
        "Shorten the input, or lower max_tokens, together by about 3,040 tokens, or wait for your running "
        "request to end.",
        id="hard: a shorter input and a shorter output would do",
    ),
    pytest.param(
        case(reserve=100, held=1200, requests=4, hard_blocks=1010, usable=2000),
        f"{holds('19,200', '16,160', '1,600')} Wait for one of your 4 running requests to end.",
        id="hard: no length would do",
    ),
    pytest.param(
        case(reserve=10, held=20, requests=2, pressed=True, hard_blocks=50),
        f"{holds('320', '800', '160')} "
        "What it runs has grown to that, so nothing new starts until something has ended. "
        "Wait for one of your 2 running requests to end.",
        id="hard: grown past it",
    ),
    pytest.param(
        case(reserve=10, soft=10, free=3),
        f"{within('160', '48')} Shorten the input by about 112 tokens, or retry.",
        id="guaranteed, with some room",
    ),
    pytest.param(
        case(reserve=10, soft=10, free=-3),
        f"{within('160', '0')} Retry.",
        id="guaranteed, without any room",
    ),
    pytest.param(
        case(reserve=10, soft=12, held=8, free=20),
        beyond("192", "is 80 % full. Retry later, or stay within that share: about 96 tokens less."),
        id="contended: a shorter one would be guaranteed",
    ),
    pytest.param(
        case(reserve=30, free=20),
        beyond("0", "is 80 % full. Retry later."),
        id="contended: no length is guaranteed",
    ),
    pytest.param(
        case(reserve=31, free=50, claimed=40, kept=20),
        beyond("0", "is 50 % full and keeps 320 tokens free for the guaranteed shares of others. Retry later."),
        id="contended: what is free is kept for others",
    ),
    pytest.param(
        case(reserve=40, free=45, claimed=5, kept=20),
        beyond("0", "is 55 % full. Retry later."),
        id="contended: what is kept for others would be left",
    ),
    pytest.param(
        case(reserve=10, lends_in=7.0),
        beyond("0", "had to end such work just now. Retry later."),
        id="contended: after an eviction",
    ),
]


@pytest.mark.parametrize(("asked", "sentence"), SENTENCES)
def test_sentences(asked: Case, sentence: str) -> None:
    assert told(asked) == sentence


def test_after_an_eviction_the_wait_is_the_longer_of_dwell_and_drain() -> None:
    verdicts = [decide(case(reserve=reserve, lends_in=7.0)) for reserve in (2, 80)]
    waits = [each.retry_after for each in verdicts if isinstance(each, Refusal)]
    assert waits == [7.0, 7.0]
    full = decide(case(reserve=10, free=-20, lends_in=7.0))
    assert isinstance(full, Refusal)
    assert full.retry_after == 46.0


def test_a_full_pool_of_nothing_is_full() -> None:
    assert "100 % full" in told(case(usable=0, reserve=0, free=-1, held=1))
