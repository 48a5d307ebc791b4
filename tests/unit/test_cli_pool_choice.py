"""Which pool `kvquota serve` takes when the files hold several, and what it says of it."""

import pytest

from kvquota_cli.embedded.pool_choice import Candidate, Choice, NoChoiceError, Wish, choose

LARGE = Candidate("inference", "llama-8b", "llama-8b-instruct", quotas=2)
SMALL = Candidate("inference", "llama-1b", "llama-1b-instruct", quotas=0)
ELSEWHERE = Candidate("lab", "llama-8b", "lab-model", quotas=1)

BY_MODEL = "the engine serves its model {}"
BY_QUOTAS = "it is the only pool that TenantQuotas refer to"


@pytest.mark.parametrize(
    ("pools", "wish", "served", "pool", "why"),
    [
        pytest.param(
            [LARGE, SMALL], Wish(pool="llama-1b"), ["llama-1b-instruct"], SMALL, "--pool names it", id="asked for"
        ),
        pytest.param(
            [LARGE, SMALL],
            Wish(),
            ["llama-1b-instruct"],
            SMALL,
            BY_MODEL.format(SMALL.model),
            id="served, without quotas",
        ),
        pytest.param([LARGE, SMALL], Wish(), None, LARGE, BY_QUOTAS, id="engine down, one has quotas"),
        pytest.param([SMALL], Wish(), None, SMALL, "it is the only pool", id="engine down, only one and no quotas"),
        pytest.param(
            [LARGE, SMALL, ELSEWHERE],
            Wish(namespace="inference"),
            None,
            LARGE,
            BY_QUOTAS,
            id="by namespace, then by quotas",
        ),
        pytest.param(
            [LARGE, ELSEWHERE], Wish(pool="lab/llama-8b"), None, ELSEWHERE, "--pool names it", id="with namespace"
        ),
        pytest.param(
            [LARGE, Candidate("inference", "twin", LARGE.model, 0)],
            Wish(),
            [LARGE.model],
            LARGE,
            BY_QUOTAS,
            id="two serve it, one has quotas",
        ),
        pytest.param(
            [LARGE, Candidate("inference", "twin", LARGE.model, 0), ELSEWHERE],
            Wish(),
            [LARGE.model],
            LARGE,
            BY_QUOTAS,
            id="two serve it, one has quotas, and so has one that it does not serve",
        ),
    ],
)
def test_the_pool_and_why(
    pools: list[Candidate], wish: Wish, served: list[str] | None, pool: Candidate, why: str
) -> None:
    assert choose(pools, wish, served) == Choice(pool, why)
    assert choose(pools[::-1], wish, served) == Choice(pool, why)


@pytest.mark.parametrize(
    ("wish", "served"),
    [
        pytest.param(Wish(pool="llama-8b"), ["other"], id="asked for"),
        pytest.param(Wish(), ["other"], id="found by its quotas"),
        pytest.param(Wish(), [], id="an engine without a model"),
    ],
)
def test_a_pool_whose_model_the_engine_does_not_serve_is_taken_with_a_warning(wish: Wish, served: list[str]) -> None:
    choice = choose([LARGE, SMALL], wish, served)
    assert choice.pool == LARGE
    assert choice.warning is not None
    assert choice.warning.startswith(f"the engine serves {', '.join(served) or 'no model'}, the pool llama-8b is for")
    assert "--served-model-name llama-8b-instruct" in choice.warning


@pytest.mark.parametrize(
    ("pools", "wish", "sentence"),
    [
        pytest.param([], Wish(), "hold no valid ModelPool", id="no pool"),
        pytest.param(
            [LARGE], Wish(namespace="x"), "no ModelPool in namespace x: .* one of inference", id="other namespace"
        ),
        pytest.param(
            [LARGE], Wish(pool="x"), "no ModelPool x: .* inference/llama-8b \\(model llama-8b-", id="unknown pool"
        ),
        pytest.param(
            [LARGE, ELSEWHERE],
            Wish(pool="llama-8b"),
            "several namespaces: .* inference/llama-8b .*, lab/llama-8b",
            id="twice",
        ),
        pytest.param(
            [LARGE, ELSEWHERE], Wish(), "several pools: .* inference/llama-8b .*, lab/llama-8b", id="two with quotas"
        ),
        pytest.param([SMALL, Candidate("a", "b", "c", 0)], Wish(), "several pools", id="two without quotas"),
    ],
)
def test_nobody_guesses(pools: list[Candidate], wish: Wish, sentence: str) -> None:
    with pytest.raises(NoChoiceError, match=sentence):
        choose(pools, wish, None)
