"""What a model is, read from its Hugging Face config.json: the kind and sizes of every layer's cache.

Decides which family a config belongs to and what of it is said outside the text model's own part. Pure.

Invariants:

1. Nothing is guessed: an architecture that is not in the table, or a field that changes the cache and that the family
   does not know, is an UnknownArchitectureError that names it; a field that is missing or malformed a ModelConfigError.
2. Nothing but these two errors is raised, whatever the config holds.

It does not know what an engine makes of the layers: types, spreading over GPUs, blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvquota_api.memory.errors import UnknownArchitectureError
from kvquota_api.memory.models.families.class_sizes import class_sizes
from kvquota_api.memory.models.families.stack import Family, Stack, Wrapper
from kvquota_api.memory.models.families.table import BY_ARCHITECTURE, BY_TYPE, CACHE_FIELDS, Entry
from kvquota_api.memory.models.fields import Fields, shown
from kvquota_api.memory.models.layers import Dtype, ModelShape, Quantisation
from kvquota_api.memory.models.positions import read_positions

DTYPES: Final[Mapping[str, Dtype]] = {
    "float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16",
}  # fmt: skip
# What ModelOpt's own file names only by its algorithm, under the names that engines give it.
MODELOPT: Final = {
    "fp8": "modelopt", "fp8_per_channel_per_token": "modelopt", "fp8_pb_wo": "modelopt", "nvfp4": "modelopt_fp4",
}  # fmt: skip
HEEDED: Final = ("modelopt", "compressed-tensors")  # of others the engines do not heed a scheme of the cache
EIGHT_BITS: Final = 8
FOUR_BITS: Final = 4


def read_model(config: Mapping[str, Any]) -> ModelShape:
    """What a config.json says. Raises UnknownArchitectureError, ModelConfigError; both name the field."""
    outer = Fields(config)
    name, entry = _entry(outer)
    text = outer
    if isinstance(entry, Wrapper):
        text, entry = _inside(outer, entry)
    fields = Fields({**_of_class(text, outer, entry), **entry.defaults, **text.values}, text.path)
    _refuse_unknown(fields, entry)
    _refuse_bidirectional(fields)
    return _shape(name, outer, fields, entry)


def _shape(name: str, outer: Fields, fields: Fields, family: Family) -> ModelShape:
    stack: Stack = family.read(fields)
    quantisation = _quantisation(outer) or _quantisation(fields)
    positions = read_positions(fields)
    return ModelShape(
        architecture=name,
        model_type=outer.text("model_type") or next(iter(family.types), ""),
        layers=stack.layers,
        draft_layers=family.drafts(fields, stack.layers) if family.drafts is not None else (),
        heads=stack.heads,
        vocabulary=_vocabulary(outer, fields),
        max_positions=positions.longest,
        usual_positions=positions.usual,
        dtype=_dtype(outer) or _dtype(fields),
        state_dtype=stack.state_dtype,
        quantisation=quantisation,
        encoder_decoder=stack.encoder_decoder,
    )


def _entry(fields: Fields) -> tuple[str, Entry]:
    model_type = fields.text("model_type")
    by_type = BY_TYPE.get(model_type) if model_type is not None else None
    if not fields.says("architectures"):
        if by_type is None:
            raise _unknown(fields, "model_type", model_type)
        return by_type.architectures[0], by_type
    name = fields.sequence("architectures")[0]
    entry = BY_ARCHITECTURE.get(name) if isinstance(name, str) else None
    if entry is None:
        raise _unknown(fields, "architectures", name)
    if isinstance(by_type, Wrapper) and BY_ARCHITECTURE.get(by_type.inside or "") is entry:
        return name, by_type
    if by_type is not None and by_type is not entry:
        fields.refuse("model_type", f"{shown(model_type)} is not a type of {name}")
    return name, entry


def _unknown(fields: Fields, field: str, value: object) -> UnknownArchitectureError:
    return UnknownArchitectureError(
        f"{fields.path}{field}: {shown(value)} is not known to the planner; a wrong plan would be worse than none."
        " Quotas work on the pool that the engine reports"
    )


def _inside(outer: Fields, wrapper: Wrapper) -> tuple[Fields, Family]:
    text = _part(outer, wrapper)
    if text is outer or not (text.says("architectures") or text.has("model_type") or wrapper.inside is None):
        entry = BY_ARCHITECTURE[wrapper.inside or ""]
    else:
        _, entry = _entry(text)
    if isinstance(entry, Wrapper):
        text.refuse("model_type", f"{entry.architectures[0]} holds no text model")
    return text, entry


def _of_class(text: Fields, outer: Fields, family: Family) -> Mapping[str, int]:
    alone = text is outer
    return {} if alone else class_sizes(text.text("model_type") or next(iter(family.types), None))


def _part(outer: Fields, wrapper: Wrapper) -> Fields:
    for path in wrapper.parts:
        fields = outer
        *above, last = path.split(".")
        for part in above:
            fields = fields.part(part) if fields.has(part) else Fields({})
        if fields.has(last):
            return fields.part(last)
    return outer if wrapper.flat else outer.part(wrapper.parts[0])


def _refuse_unknown(fields: Fields, family: Family) -> None:
    sliding = () if family.slides else ("sliding_window",)
    for field in sorted({*CACHE_FIELDS - family.knows, *sliding}):
        if fields.says(field):
            raise UnknownArchitectureError(
                f"{fields.path}{field}: this field changes what a model caches, and the planner does not know what it"
                f" means for {family.architectures[0]}"
            )


def _refuse_bidirectional(fields: Fields) -> None:
    if fields.values.get("is_causal") is False:
        raise UnknownArchitectureError(
            f"{fields.path}is_causal: a model that attends in both directions keeps no cache of a running sequence"
        )


def _vocabulary(outer: Fields, fields: Fields) -> int:
    name = fields.first(("vocab_size", "padded_vocab_size"))
    return (fields if fields.has(name) or not outer.has(name) else outer).count(name)


def _dtype(fields: Fields) -> Dtype | None:
    field = fields.first(("dtype", "torch_dtype"))
    named = fields.text(field)
    if named is None:
        return None
    dtype = DTYPES.get(named.removeprefix("torch."))
    return dtype or fields.refuse(field, f"{shown(named)} is none of {', '.join(DTYPES)}")


def declared_quantisation(fields: Fields) -> Fields | None:
    """How the checkpoint says that its weights are stored, under either of the names that checkpoints use."""
    field = fields.first(("quantization_config", "compression_config"))
    return fields.part(field) if fields.has(field) else None


def _quantisation(fields: Fields) -> Quantisation | None:
    declared = declared_quantisation(fields)
    if declared is None:
        return None
    inner = declared.part("quantization") if declared.has("quantization") else declared
    method = _method(declared, inner)
    heeded = method.startswith(HEEDED)
    return Quantisation(method, _kv_scheme(declared, inner) if heeded else None)


def _method(declared: Fields, inner: Fields) -> str:
    method = (declared.text("quant_method") or "").lower().replace("compressed_tensors", "compressed-tensors")
    algorithm = (inner.text("quant_algo") or "").lower()
    return method or MODELOPT.get(algorithm, algorithm)


def _kv_scheme(declared: Fields, inner: Fields) -> str | None:
    for part, field in (
        (inner, "kv_cache_scheme"),
        (declared, "kv_cache_scheme"),
        (inner, "kv_cache_quant_algo"),
        (declared, "kv_cache_quant_algo"),
    ):
        if part.says(field):
            value = part.values[field]
            return _scheme(part.part(field)) if isinstance(value, Mapping) else (part.text(field) or "").lower()
    return None


def _scheme(scheme: Fields) -> str:
    bits, kind = scheme.count("num_bits"), scheme.text("type")
    if kind == "float" and bits == EIGHT_BITS:
        return "fp8"
    return "nvfp4" if kind == "float" and bits == FOUR_BITS else f"{kind}{bits}"
