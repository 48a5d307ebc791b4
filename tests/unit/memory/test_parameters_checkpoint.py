"""How a checkpoint's weights are stored, read from its quantization_config."""

from fractions import Fraction
from typing import Any

import pytest

from kvquota_api.memory.errors import ModelConfigError
from kvquota_api.memory.models.fields import Fields
from kvquota_api.memory.parameters.checkpoint import rules_of, stored_as

ATTENTION = "layers.3.self_attn.q_proj"
EXPERTS = "layers.3.mlp.experts.gate_proj"
MLP = "layers.3.mlp.gate_proj"


def ct(weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A quantization_config of compressed-tensors with one group of all linear layers."""
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, **more}


def bytes_of(quantisation: dict[str, Any], module: str) -> tuple[Fraction, int] | None:
    """Bytes of one parameter, and beside them of one output; None where the module is stored plainly."""
    stored = stored_as(rules_of(Fields(quantisation)), module, 3)
    return None if stored is None else (stored.parameter, stored.row)


FORMATS = {
    "fp8 with one scale for a matrix": ({"quant_method": "fp8"}, (Fraction(1), 0)),
    "fp8 in tiles of 128 x 128": (
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        (1 + Fraction(4, 16384), 0),
    ),
    "fp8 of FBGEMM, with a scale per output": ({"quant_method": "fbgemm_fp8"}, (Fraction(1), 4)),
    "AWQ of 4 bits in groups of 128": (
        {"quant_method": "awq", "bits": 4, "group_size": 128},
        (Fraction(1, 2) + Fraction(5, 256), 0),
    ),
    "AWQ with its older names": (
        {"quant_method": "awq", "w_bit": 4, "q_group_size": 64},
        (Fraction(1, 2) + Fraction(5, 128), 0),
    ),
    "GPTQ of 8 bits in groups of 32": (
        {"quant_method": "gptq", "bits": 8, "group_size": 32},
        (1 + Fraction(3, 32), 0),
    ),
    "GPTQ with one group per output": ({"quant_method": "gptq", "bits": 4, "group_size": -1}, (Fraction(1, 2), 4)),
    "bitsandbytes of 8 bits": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, (Fraction(1), 0)),
    "bitsandbytes of 4 bits": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        (Fraction(1, 2) + Fraction(1, 16), 0),
    ),
    "bitsandbytes of 4 bits with scales quantised again": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
        (Fraction(1, 2) + Fraction(1, 64) + Fraction(1, 4096), 0),
    ),
    "ModelOpt of FP8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, (Fraction(1), 0)),
    "ModelOpt without a method": ({"quant_algo": "FP8", "producer": {"name": "modelopt"}}, (Fraction(1), 0)),
    "ModelOpt in a file of its own": ({"quantization": {"quant_algo": "FP8"}}, (Fraction(1), 0)),
    "ModelOpt of NVFP4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, (Fraction(9, 16), 0)),
    "compressed integers of 4 bits in groups of 32": (
        ct({"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True}),
        (Fraction(1, 2) + Fraction(2, 32), 0),
    ),
    "compressed integers of 4 bits with zero points": (
        ct({"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False}),
        (Fraction(1, 2) + Fraction(5, 64), 0),
    ),
    "compressed integers of 8 bits with a scale per output": (
        ct({"type": "int", "num_bits": 8, "strategy": "channel"}),
        (Fraction(1), 2),
    ),
    "compressed 8-bit floats of one scale": (
        ct({"type": "float", "num_bits": 8, "strategy": "tensor"}),
        (Fraction(1), 0),
    ),
    "compressed 8-bit floats with a scale per output": (
        ct({"type": "float", "num_bits": 8, "strategy": "channel"}),
        (Fraction(1), 4),
    ),
    "compressed 8-bit floats in tiles": (
        ct({"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [128, 128]}),
        (1 + Fraction(4, 16384), 0),
    ),
    "compressed NVFP4": (ct({"type": "float", "num_bits": 4, "group_size": 16}), (Fraction(9, 16), 0)),
    "compressed MXFP4": (
        ct({"type": "float", "num_bits": 4, "group_size": 32}, format="mxfp4-pack-quantized"),
        (Fraction(17, 32), 0),
    ),
    "a group without targets is of all linear layers": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 8}}},
        },
        (Fraction(1), 0),
    ),
}


@pytest.mark.parametrize(("quantisation", "stored"), FORMATS.values(), ids=FORMATS)
def test_a_format_is_read(quantisation: dict[str, Any], stored: tuple[Fraction, int]) -> None:
    assert bytes_of(quantisation, MLP) == stored


MIXED = {
    "quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION",
    "exclude_modules": ["lm_head"],
    "quantized_layers": {
        "model.layers.3.self_attn.q_proj": {"quant_algo": "FP8"},
        "model.layers.3.mlp.experts.0.gate_proj": {"quant_algo": "NVFP4", "group_size": 16},
        "model.layers.3.mlp.experts.1.gate_proj": {"quant_algo": "NVFP4", "group_size": 16},
    },
}
TWO_GROUPS = {
    "quant_method": "compressed-tensors",
    "format": "mixed-precision",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"type": "float", "num_bits": 4, "group_size": 16}},
        "group_1": {"targets": ["re:.*self_attn.*"], "weights": {"type": "float", "num_bits": 8}},
    },
}
KEPT = {
    "attention stays in 16 bits by a regular expression": (
        ct({"type": "float", "num_bits": 8}, ignore=["re:.*self_attn.*"]),
        {ATTENTION: None, EXPERTS: (Fraction(1), 0)},
    ),
    "attention stays in 16 bits by a name with a star": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.3.self_attn*"]},
        {ATTENTION: None, EXPERTS: (Fraction(9, 16), 0)},
    ),
    "MXFP4 is of experts only": (
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
        {ATTENTION: None, MLP: None, EXPERTS: (Fraction(17, 32), 0)},
    ),
    "mixed precision names its modules": (
        MIXED,
        {ATTENTION: (Fraction(1), 0), EXPERTS: (Fraction(9, 16), 0), MLP: None},
    ),
    "mixed precision on top of FP8 tiles, which hold for what it leaves out": (
        {**MIXED, "quant_method": "fp8", "weight_block_size": [128, 128], "exclude_modules": ["*.mlp.gate_proj"]},
        {ATTENTION: (Fraction(1), 0), EXPERTS: (Fraction(9, 16), 0), MLP: (1 + Fraction(4, 16384), 0)},
    ),
    "a group that names modules goes before that of all": (
        TWO_GROUPS,
        {ATTENTION: (Fraction(1), 0), MLP: (Fraction(9, 16), 0)},
    ),
}


@pytest.mark.parametrize(("quantisation", "stored"), KEPT.values(), ids=KEPT)
def test_each_module_has_its_own_format(
    quantisation: dict[str, Any], stored: dict[str, tuple[Fraction, int] | None]
) -> None:
    assert {module: bytes_of(quantisation, module) for module in stored} == stored


REFUSED = {
    "no method": ({"bits": 4}, "quant_method: missing"),
    "a method that is not known": ({"quant_method": "aqlm"}, "quant_method: the planner does not know 'aqlm'"),
    "tiles of one size": ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size: [128] is not two"),
    "tiles of nothing": ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size: [0, 128]"),
    "GPTQ by layer": ({"quant_method": "gptq", "bits": 4, "dynamic": {"x": {}}}, "dynamic: the planner does not"),
    "GPTQ without a group size": ({"quant_method": "gptq", "bits": 4}, "group_size: None is not a whole number"),
    "bitsandbytes of no size": ({"quant_method": "bitsandbytes"}, "load_in_4bit: neither this nor"),
    "ModelOpt without an algorithm": ({"quant_method": "modelopt"}, "quant_algo: missing"),
    "an algorithm that is not known": (
        {"quant_method": "modelopt", "quant_algo": "W2"},
        "quant_algo: the planner does not know the algorithm 'W2'",
    ),
    "a module without an algorithm": (
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"lm_head": 4}},
        "quantized_layers: 'lm_head' has no quant_algo",
    ),
    "no groups": ({"quant_method": "compressed-tensors", "config_groups": {}}, "config_groups: has 0 entries"),
    "NVFP4 in other groups": (ct({"type": "float", "num_bits": 4, "group_size": 32}), "weights.group_size: 32 is not"),
    "8-bit floats by a strategy that is not known": (
        ct({"type": "float", "num_bits": 8, "strategy": "row"}),
        "weights.strategy: 'row' is not known",
    ),
    "integers by a strategy that is not known": (
        ct({"type": "int", "num_bits": 4, "strategy": "row"}),
        "weights.type: the planner does not know 'int' of 4 bits by 'row'",
    ),
    "a list that is no list": ({"quant_method": "fp8", "modules_to_not_convert": 4}, "modules_to_not_convert: not a"),
    "a pattern that is no text": ({"quant_method": "fp8", "ignored_layers": [4]}, "ignored_layers: has an entry"),
    "an expression that could run for long": (
        ct({"type": "float", "num_bits": 8}, ignore=["re:(a+)+b"]),
        "ignore: the planner does not know the pattern '(a+)+b'",
    ),
    "an expression that is none": (ct({"type": "float", "num_bits": 8}, ignore=["re:(a"]), "'(a' is no regular"),
}


@pytest.mark.parametrize(("quantisation", "says"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_known_is_an_error_that_names_the_field(quantisation: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelConfigError) as raised:
        rules_of(Fields(quantisation, "quantization_config."))

    assert says in str(raised.value)
