"""The planner that remembers: the same answers as plan_pool, each worked out once."""

import pytest

import reconcile_builders as make
from kvquota_api.memory.errors import PlanError
from kvquota_api.memory.plan import plan_pool
from kvquota_operator import planner
from kvquota_operator.planner import Planner

FROM_A_MAP = {"model__config": {"configMapRef": {"name": "llama", "key": "config.json"}}}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
SMALLER = {**CONFIG, "num_hidden_layers": 16}


@pytest.fixture
def asked(monkeypatch):
    """The pools that were planned."""
    found = []

    def planned(pool, model_config):
        found.append(pool)
        return plan_pool(pool, model_config)

    monkeypatch.setattr(planner, "plan_pool", planned)
    return found


def annotated(pool):
    return pool.model_copy(update={"metadata": pool.metadata.model_copy(update={"generation": 99})})


def test_a_pool_is_planned_once_while_nothing_changes_that_a_plan_depends_on(asked):
    plan = Planner()
    answers = [plan(each, None) for each in (make.pool(), make.pool(), annotated(make.pool()))]
    assert (answers, len(asked)) == ([plan_pool(make.pool(), None)] * 3, 1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((make.pool(), None), (make.pool(model__maxModelLen=16_384), None), id="another spec"),
        pytest.param((make.pool(**FROM_A_MAP), CONFIG), (make.pool(**FROM_A_MAP), SMALLER), id="another config map"),
    ],
)
def test_what_changed_is_planned_anew(asked, before, after):
    plan = Planner()
    assert [plan(*before), plan(*after), plan(*before)] == [plan_pool(*before), plan_pool(*after), plan_pool(*before)]
    assert len(asked) == 3


def test_that_there_is_no_plan_is_remembered_too(asked):
    plan, too_large = Planner(), make.pool(memory__kvPool={"percent": 95})
    told = []
    for _ in range(3):
        with pytest.raises(PlanError) as raised:
            plan(too_large, None)
        told.append((type(raised.value), str(raised.value), len(raised.traceback)))
    assert (len(set(told)), len(asked)) == (1, 1)


def test_a_plan_that_comes_after_none_is_found(asked):
    plan = Planner()
    with pytest.raises(PlanError):
        plan(make.pool(memory__kvPool={"percent": 95}), None)
    assert plan(make.pool(), None) == plan_pool(make.pool(), None)
