"""How a checkpoint's weights are stored, from its `quantization_config`.

Decides which modules are quantised, and in which format. Pure.

Invariants:

1. A method, a type or a size that is not known is a ModelConfigError that names the field: no format is guessed.
2. The first rule that covers a module decides; what no rule covers is stored plainly.

Methods: fp8 (DeepSeek, Qwen), fbgemm_fp8, compressed-tensors, modelopt (FP8, NVFP4, mixed), awq, gptq, mxfp4,
bitsandbytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from kvquota_api.memory.models.fields import Fields
from kvquota_api.memory.parameters.exceptions import Modules, Sign, gathered, modules_of
from kvquota_api.memory.parameters.formats import (
    FP8,
    FP8_ROWS,
    INT8,
    MXFP4,
    NF4,
    NF4_DOUBLE,
    NVFP4,
    Format,
    float8_blocks,
    grouped,
)
from kvquota_api.quoting import quoted

EVERYTHING: Final = Modules(anywhere=(lambda _: True,))
EXPERTS: Final = Modules(anywhere=(lambda module: ".experts" in f".{module}",))
MODELOPT_FILE: Final = "quantization"  # what ModelOpt writes into a file of its own, hf_quant_config.json
KEPT_BY_MODELOPT: Final = ("exclude_modules", "ignore", "modules_to_not_convert")
MAX_GROUPS: Final = 64  # of config_groups: checkpoints have one to three


@dataclass(frozen=True, slots=True)
class Rule:
    """What `modules` covers is stored as `stored`, plainly where that is None."""

    modules: Modules
    stored: Format | None


Rules = tuple[Rule, ...]


def stored_as(rules: Rules, module: str, layer: int | None = None, *, also: str = "") -> Format | None:
    """The format of a module, None where it is stored plainly. `also`: another name of the module."""
    for rule in rules:
        if rule.modules.covers(module, layer) or (also and rule.modules.covers(also)):
            return rule.stored
    return None


def sign_of(rules: Rules, layer: int) -> tuple[Sign, ...]:
    """Equal for layers whose modules of the same name are stored alike."""
    return tuple(rule.modules.sign(layer) for rule in rules)


def rules_of(quantisation: Fields) -> Rules:
    """The rules of a `quantization_config`. Raises ModelConfigError."""
    if quantisation.has(MODELOPT_FILE):
        return _modelopt(quantisation.part(MODELOPT_FILE))
    method = quantisation.text("quant_method") or _method_of_producer(quantisation)
    reader = _METHODS.get(method)
    if reader is None:
        quantisation.refuse(
            "quant_method",
            f"the planner does not know {quoted(method)}, only {', '.join(sorted(_METHODS))}: state weightDtype",
        )
    return reader(quantisation)


def names_no_exception(quantisation: Fields) -> bool:
    """Whether ModelOpt does not say what it left unquantised, though there always is something."""
    own = quantisation.part(MODELOPT_FILE) if quantisation.has(MODELOPT_FILE) else quantisation
    return own.has("quant_algo") and not any(own.has(name) for name in (*KEPT_BY_MODELOPT, "quantized_layers"))


def _method_of_producer(quantisation: Fields) -> str:
    """Older files of ModelOpt have no method, but an algorithm."""
    return "modelopt" if quantisation.has("quant_algo") else quantisation.refuse("quant_method", "missing")


def _kept(quantisation: Fields, *names: str) -> Rules:
    return tuple(Rule(modules_of(quantisation, name), None) for name in names)


def _fp8(quantisation: Fields) -> Rules:
    if quantisation.says("quantized_layers"):
        return _modelopt(quantisation)
    kept = _kept(quantisation, "modules_to_not_convert", "ignored_layers")
    if not quantisation.has("weight_block_size"):
        return (*kept, Rule(EVERYTHING, FP8))
    return (*kept, Rule(EVERYTHING, _tiles(quantisation, "weight_block_size")))


def _tiles(fields: Fields, name: str) -> Format:
    sizes = fields.numbers(name)
    if len(sizes) != 2 or 0 in sizes:
        fields.refuse(name, f"{quoted(list(sizes))} is not two sizes")
    return float8_blocks(*sizes)


def _fbgemm(quantisation: Fields) -> Rules:
    return (*_kept(quantisation, "modules_to_not_convert"), Rule(EVERYTHING, FP8_ROWS))


def _mxfp4(quantisation: Fields) -> Rules:
    return (*_kept(quantisation, "modules_to_not_convert"), Rule(EXPERTS, MXFP4))


def _awq(quantisation: Fields) -> Rules:
    packed = grouped(
        quantisation.count(quantisation.first(("bits", "w_bit"))),
        quantisation.count(quantisation.first(("group_size", "q_group_size"))),
    )
    return (*_kept(quantisation, "modules_to_not_convert"), Rule(EVERYTHING, packed))


def _gptq(quantisation: Fields) -> Rules:
    for field in ("dynamic", "lm_head", "modules_in_block_to_quantize"):
        if quantisation.says(field):
            quantisation.refuse(field, "the planner does not know GPTQ with it: state weightDtype")
    bits, group = quantisation.count("bits"), quantisation.values.get("group_size")
    if group == -1:
        return (*_kept(quantisation, "modules_to_not_convert"), Rule(EVERYTHING, Format(Fraction(bits, 8), row=4)))
    return (
        *_kept(quantisation, "modules_to_not_convert"),
        Rule(EVERYTHING, grouped(bits, quantisation.count("group_size"))),
    )


def _bitsandbytes(quantisation: Fields) -> Rules:
    kept = _kept(quantisation, "llm_int8_skip_modules")
    if quantisation.flag("load_in_8bit", missing=False):
        return (*kept, Rule(EVERYTHING, INT8))
    if not quantisation.flag("load_in_4bit", missing=False):
        quantisation.refuse("load_in_4bit", "neither this nor load_in_8bit is true")
    double = quantisation.flag("bnb_4bit_use_double_quant", missing=False)
    return (*kept, Rule(EVERYTHING, NF4_DOUBLE if double else NF4))


def _modelopt(quantisation: Fields) -> Rules:
    """ModelOpt: one algorithm for all, or one for each module; what it leaves out stands in either of two lists."""
    kept = _kept(quantisation, *KEPT_BY_MODELOPT)
    algorithm = quantisation.text("quant_algo") or quantisation.refuse("quant_algo", "missing")
    if algorithm != "MIXED_PRECISION":
        return (*kept, Rule(EVERYTHING, _algorithm(quantisation, "quant_algo", algorithm)))
    rest = (
        (Rule(EVERYTHING, _tiles(quantisation, "weight_block_size")),) if quantisation.has("weight_block_size") else ()
    )
    if rest:  # what ModelOpt left out keeps the checkpoint's first quantisation
        return (*_by_module(quantisation), *rest)
    return (*kept, *_by_module(quantisation))


def _by_module(quantisation: Fields) -> Rules:
    """The modules of each algorithm in `quantized_layers`."""
    named: dict[str, list[str]] = {}
    layers = quantisation.part("quantized_layers").values
    for module, how in layers.items():
        algorithm = how.get("quant_algo") if isinstance(how, Mapping) else None
        if not isinstance(algorithm, str):
            quantisation.refuse("quantized_layers", f"{quoted(module)} has no quant_algo")
        named.setdefault(algorithm, []).append(_without_expert(module))
    return tuple(
        Rule(
            gathered(quantisation, "quantized_layers", dict.fromkeys(modules)),
            _algorithm(quantisation, "quantized_layers", algorithm),
        )
        for algorithm, modules in named.items()
    )


def _without_expert(module: str) -> str:
    """All experts of a layer are stored alike: the name without the number of one."""
    head, found, tail = module.partition(".experts.")
    return f"{head}.experts" if found and tail[:1].isdigit() else module


def _algorithm(fields: Fields, name: str, algorithm: str) -> Format:
    known = {
        "FP8": FP8,
        "FP8_PER_CHANNEL_PER_TOKEN": FP8_ROWS,
        "FP8_PB_WO": float8_blocks(128, 128),
        "NVFP4": NVFP4,
        "NVFP4_AWQ": NVFP4,
        "W4A16_NVFP4": NVFP4,
        "MXFP8": Format(1 + Fraction(1, 32)),
        "W4A16_AWQ": grouped(4, 128),
        "W4A8_AWQ": grouped(4, 128),
    }
    return known.get(algorithm) or fields.refuse(name, f"the planner does not know the algorithm {quoted(algorithm)}")


def _compressed(quantisation: Fields) -> Rules:
    """compressed-tensors: the groups that name modules go before the one of all linear layers."""
    groups = quantisation.part("config_groups")
    if not 0 < len(groups.values) <= MAX_GROUPS:
        quantisation.refuse("config_groups", f"has {len(groups.values)} entries")
    rules = [_group(quantisation, groups.part(name)) for name in groups.values]
    named = tuple(rule for rule in rules if rule.modules is not EVERYTHING)
    return (*_kept(quantisation, "ignore"), *named, *(rule for rule in rules if rule.modules is EVERYTHING))


def _group(quantisation: Fields, group: Fields) -> Rule:
    targets = group.sequence("targets") if group.has("targets") else ("Linear",)
    own = group.text("format") or quantisation.text("format")
    stored = _packed(group.part("weights"), own)
    if "Linear" in targets:
        return Rule(EVERYTHING, stored)
    return Rule(gathered(group, "targets", targets), stored)


def _packed(weights: Fields, packed: str | None) -> Format:
    kind, bits, strategy = weights.text("type"), weights.count("num_bits"), weights.text("strategy")
    if kind == "float" and bits == 4:
        return MXFP4_PACKED if packed == "mxfp4-pack-quantized" else _nvfp4(weights)
    if kind == "float" and bits == 8:
        return _float8(weights, strategy)
    if kind == "int" and strategy in ("group", "channel"):
        return _integers(weights, bits, strategy)
    return weights.refuse("type", f"the planner does not know {quoted(kind)} of {bits} bits by {quoted(strategy)}")


MXFP4_PACKED: Final = Format(MXFP4.parameter)  # as checkpoints of linear layers have it: nothing is padded


def _nvfp4(weights: Fields) -> Format:
    size = weights.count("group_size")
    return NVFP4 if size == 16 else weights.refuse("group_size", f"{size} is not 16")


def _float8(weights: Fields, strategy: str | None) -> Format:
    if strategy == "block":
        return _tiles(weights, "block_structure")
    if strategy in ("channel", "token"):
        return FP8_ROWS
    return FP8 if strategy in (None, "tensor") else weights.refuse("strategy", f"{quoted(strategy)} is not known")


def _integers(weights: Fields, bits: int, strategy: str | None) -> Format:
    if strategy == "channel":
        return Format(Fraction(bits, 8), row=2)
    return grouped(bits, weights.count("group_size"), zero_points=not weights.flag("symmetric", missing=True))


_METHODS: Final[Mapping[str, Callable[[Fields], Rules]]] = {
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
    "fbgemm_fp8": _fbgemm,
    "fp8": _fp8,
    "gptq": _gptq,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "mxfp4": _mxfp4,
}
