"""Which modules the names and patterns of a checkpoint mean."""

import pytest

from kvquota_api.memory.models.fields import Fields
from kvquota_api.memory.parameters.exceptions import Modules, modules_of

COVERS = {
    "a module by its name": ("model.layers.1.mlp.gate", "layers.1.mlp.gate", 1, True),
    "not the same module of another layer": ("model.layers.1.mlp.gate", "layers.11.mlp.gate", 11, False),
    "not a module whose name goes on": ("model.layers.1.mlp.gate", "layers.1.mlp.gate_proj", 1, False),
    "all modules within it": ("model.layers.1.mlp", "layers.1.mlp.gate_proj", 1, True),
    "its weight by name": ("model.layers.1.mlp.gate.weight", "layers.1.mlp.gate", 1, True),
    "a part of a name in every layer": ("gate", "layers.7.mlp.gate", 7, True),
    "a part of a name as a whole word only": ("gate", "layers.7.mlp.gate_proj", 7, False),
    "a module without a layer": ("lm_head", "lm_head", None, True),
    "a name with another root": ("language_model.model.layers.2.self_attn", "layers.2.self_attn.o_proj", 2, True),
    "the beginning of a name": ("model.layers.0*", "layers.0.mlp.up_proj", 0, True),
    "the beginning of another layer's name": ("model.layers.1.*", "layers.12.mlp.up_proj", 12, False),
    "any layer by a star": ("model.layers.*.self_attn*", "layers.9.self_attn.q_proj", 9, True),
    "the end of a name by a star": ("*.shared_expert.up_proj", "layers.9.mlp.shared_expert.up_proj", 9, True),
    "nothing behind the end of a name": ("*.shared_expert", "layers.9.mlp.shared_expert.up_proj", 9, False),
    "stars around what is not there": ("*.mlp.*.gate", "layers.9.self_attn.gate", 9, False),
    "a regular expression": (r"re:.*mlp\.(gate|up|down)_proj.*", "layers.3.mlp.up_proj", 3, True),
    "a regular expression that does not match": (r"re:.*mlp\.(gate|up)_proj", "layers.3.mlp.experts.up_proj", 3, False),
    "a regular expression from the root": (r"re:^model\.layers\.\d+\.mlp", "layers.14.mlp.up_proj", 14, True),
    "a regular expression of another root": (r"re:visual\.", "layers.14.mlp.up_proj", 14, False),
}


@pytest.mark.parametrize(("pattern", "module", "layer", "covered"), COVERS.values(), ids=COVERS)
def test_a_pattern_covers(pattern: str, module: str, layer: int | None, covered: bool) -> None:
    assert modules_of(Fields({"ignore": [pattern]}), "ignore").covers(module, layer) is covered


def test_a_list_that_is_not_there_covers_nothing() -> None:
    assert modules_of(Fields({}), "ignore") == Modules()
    assert not Modules().covers("lm_head")


# Of each list: the layers that are alike to it, of 1, 2, 3, 11 and 12.
ALIKE = {
    "nothing": ([], [[1, 2, 3], [11, 12]]),
    "a name in every layer": (["mlp.gate", "lm_head"], [[1, 2, 3], [11, 12]]),
    "one layer": (["model.layers.2.mlp.gate"], [[1, 3], [2], [11, 12]]),
    "the same of two layers, in another order": (
        ["model.layers.1.mlp", "model.layers.1.attn", "model.layers.3.attn", "model.layers.3.mlp"],
        [[1, 3], [2], [11, 12]],
    ),
    "different modules of two layers": (["layers.1.mlp", "layers.2.attn"], [[1], [2], [3], [11, 12]]),
    "all of some layers by stars": (["model.layers.1.*", "model.layers.11*"], [[1], [2, 3], [11], [12]]),
    "stars in every layer": (["model.layers.*.mlp*"], [[1, 2, 3], [11, 12]]),
    "stars that may stand for a number": (["*.1*mlp"], [[1], [2], [3], [11], [12]]),
    "an expression for any number": ([r"re:.*layers\.\d+\.mlp", r"re:layers\.[0-9]+\.attn"], [[1, 2, 3], [11, 12]]),
    "an expression that names a number": ([r"re:.*layers\.1\d+\.mlp"], [[1], [2], [3], [11], [12]]),
    "an expression with a range": ([r"re:.*layers\.[12]\.mlp"], [[1], [2], [3], [11], [12]]),
    "a name that begins with a number": (["2.mlp"], [[1], [2], [3], [11], [12]]),
    "a name that has a number in it": (["visual.blocks.2.mlp"], [[1, 2, 3], [11, 12]]),
}


@pytest.mark.parametrize(("patterns", "groups"), ALIKE.values(), ids=ALIKE)
def test_layers_of_one_sign_have_the_same_modules_covered(patterns: list[str], groups: list[list[int]]) -> None:
    modules = modules_of(Fields({"ignore": patterns}), "ignore")
    signs: dict[object, list[int]] = {}
    for layer in (1, 2, 3, 11, 12):
        signs.setdefault(modules.sign(layer), []).append(layer)
    assert list(signs.values()) == groups
