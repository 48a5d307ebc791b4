"""What a model's weights take on one GPU.

Decides the bytes of the GPU that holds most, from the parameter count, the stored type and the parallelism
(docs/memory.md §4). Pure.

Invariants:

1. Embedding, head, norms, routers and convolutions stay unquantised, except in GGUF types; a tied head counts once, but
   for a last pipeline stage that has no embedding of its own.
2. Tensor parallelism divides what can be divided: never a KV head, a norm, a router, a latent's way down.
3. Draft layers for multi-token prediction count only where they are asked for, on the last stage.

It does not know expert parallelism, which spreads the same bytes, nor what a loader needs for a moment beside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, Literal

from kvquota_api.amounts import Bytes
from kvquota_api.memory.errors import ModelConfigError
from kvquota_api.memory.inputs import EngineName, Platform
from kvquota_api.memory.models.fields import Fields
from kvquota_api.memory.models.reading import declared_quantisation
from kvquota_api.memory.parameters.checkpoint import (
    EVERYTHING,
    EXPERTS,
    MXFP4_PACKED,
    Rule,
    Rules,
    names_no_exception,
    rules_of,
    sign_of,
    stored_as,
)
from kvquota_api.memory.parameters.counting import count_parameters
from kvquota_api.memory.parameters.formats import PLAIN_BYTES, Format, format_of
from kvquota_api.memory.parameters.tensors import ParameterCount, Tensor, Tensors
from kvquota_api.memory.stages import stages_of
from kvquota_api.quoting import quoted

Drafts = Literal["Without", "WithDraft"]
Kernels = Literal["Triton", "Marlin"]

VOCABULARY_STEP: Final = 64  # entries; vLLM pads the vocabulary to a multiple (DEFAULT_VOCAB_PADDING_SIZE)
# Multiples of hidden size and width of an MXFP4 expert: vLLM rounds both up for the kernels of Marlin and TensorRT-LLM.
MARLIN_STEPS: Final = (256, 128)
TRITON_STEP: Final = 256  # inputs of an MXFP4 expert; fits the logs of vLLM 0.11 on H100 (docs/memory.md §4)
NO_EXCEPTIONS: Final = (
    "the quantization_config names nothing that stays unquantised: what the checkpoint keeps in 16 bits beside"
    " embedding and head is not counted"
)
EMBEDDING: Final = "model.embed_tokens"
LANGUAGE_PARTS: Final = ("text_config", "llm_config", "language_config")  # of configs that wrap a language model
_CONFIG_DTYPES: Final[Mapping[str, str]] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, slots=True)
class Stored:
    """How weights are stored.

    `plain`: bytes of what no rule quantises; `rules`: for the linear layers; `tables`: bytes of an element of embedding
    and head, None where plain; `absorbs`: the engine keeps what goes up from a latent, or makes keys and values, once
    more for its kernels.
    """

    plain: int
    rules: Rules
    tables: Fraction | None = None
    kernels: Kernels = "Marlin"
    absorbs: bool = True


@dataclass(frozen=True, slots=True)
class _Place:
    """A module's full name without what stands before `layers.`, its layer, and what else a checkpoint may call it."""

    module: str
    layer: int | None = None
    also: str = ""


@dataclass(frozen=True, slots=True)
class Weights:
    """`size`: bytes on the GPU that holds most; `assumptions`: sentences."""

    size: Bytes
    assumptions: tuple[str, ...]


def weights_per_gpu(
    config: Mapping[str, Any],
    weight_dtype: str = "auto",
    *,
    tensor: int = 1,
    pipeline: int = 1,
    dtype: str = "auto",
    drafts: Drafts = "Without",
    engine: EngineName = "vLLM",
    platform: Platform = "cuda-sm90",
) -> Weights:
    """The weights of the GPU that holds most. `weight_dtype`: "auto" or a format; `dtype`: what is not quantised is
    computed in. Raises PlanError for what is not known."""
    count = count_parameters(config)
    stored, assumptions = stored_of(config, weight_dtype, dtype)
    stored = replace(stored, kernels="Triton" if platform == "cuda-sm90" else "Marlin", absorbs=engine == "vLLM")
    each_layer = _layers_bytes(count.layers, stored, tensor)
    sizes = [
        sum((each_layer[layer] for layer in layers), Fraction(0)) + _ends_bytes(ends, stored, tensor)
        for layers, ends in zip(_stages(count, pipeline, engine), _ends(count, pipeline), strict=True)
    ]
    if drafts == "WithDraft":
        sizes[-1] += _draft_bytes(count, stored, tensor)
    return Weights(Bytes(-(-max(sizes) // 1)), (*count.assumptions, *assumptions))


def stored_of(config: Mapping[str, Any], weight_dtype: str, dtype: str) -> tuple[Stored, tuple[str, ...]]:
    """How the weights are stored, and what was assumed. Raises ModelConfigError."""
    quantisation = _quantisation(config)
    if weight_dtype in PLAIN_BYTES:
        return Stored(PLAIN_BYTES[weight_dtype], ()), ()
    plain, assumptions = _plain(config, dtype)
    if weight_dtype != "auto":
        form = format_of(weight_dtype)
        experts_only = weight_dtype == "mxfp4" and _says_experts(config)
        return Stored(plain, (Rule(EXPERTS if experts_only else EVERYTHING, form),), form.tables), assumptions
    rules = () if quantisation is None else rules_of(quantisation)
    silent = (NO_EXCEPTIONS,) if quantisation is not None and names_no_exception(quantisation) else ()
    return Stored(plain, (*_own_experts(config), *rules)), (*assumptions, *silent)


def _says_experts(config: Mapping[str, Any]) -> bool:
    """gpt-oss: only its experts are ever MXFP4."""
    return config.get("model_type") == "gpt_oss"


def _own_experts(config: Mapping[str, Any]) -> Rules:
    """DeepSeek V4 says of its experts alone that they are 4-bit floats."""
    stated = config.get("expert_dtype")
    if stated is None:
        return ()
    if stated != "fp4":
        raise ModelConfigError(f"expert_dtype: {quoted(stated)} is not known, only fp4: state weightDtype")
    return (Rule(EXPERTS, MXFP4_PACKED),)


def _quantisation(config: Mapping[str, Any]) -> Fields | None:
    """What the checkpoint declares, in the config or in that of its language part."""
    fields = Fields(config)
    inner = [fields.part(name) for name in LANGUAGE_PARTS if fields.has(name)]
    return next((found for each in (fields, *inner) if (found := declared_quantisation(each)) is not None), None)


def _plain(config: Mapping[str, Any], dtype: str) -> tuple[int, tuple[str, ...]]:
    if dtype in PLAIN_BYTES:
        return PLAIN_BYTES[dtype], ()
    if dtype != "auto":
        name = _CONFIG_DTYPES.get(dtype)
        if name is None:
            raise ModelConfigError(f"dtype: {quoted(dtype)} is not known; known are auto, {', '.join(PLAIN_BYTES)}")
        return PLAIN_BYTES[name], ()
    stated = _stated_dtype(config)
    if stated in ("bfloat16", "float16"):
        return 2, ()
    return 2, (f"what is not quantised is loaded in 16 bits: the config says {stated or 'nothing'} of its type",)


def _stated_dtype(config: Mapping[str, Any]) -> str | None:
    text = config.get("text_config")
    for place in (config, text if isinstance(text, Mapping) else {}):
        for field in ("torch_dtype", "dtype"):
            if isinstance(place.get(field), str):
                return str(place[field])[:60]
    return None


def _stages(count: ParameterCount, pipeline: int, engine: EngineName) -> list[range]:
    """The layers of each pipeline stage."""
    if pipeline == 1:
        return [range(len(count.layers))]
    where = stages_of(len(count.layers), pipeline, engine)
    return [range(where.index(stage), where.index(stage) + where.count(stage)) for stage in range(pipeline)]


def _ends(count: ParameterCount, pipeline: int) -> list[Tensors]:
    """What each stage has beside its layers: the first one the embedding, the last one the head."""
    again = tuple(each for each in count.first if each.module == EMBEDDING) if count.tied else ()
    if pipeline == 1:
        return [(*count.first, *count.last)]
    return [count.first, *[()] * (pipeline - 2), (*count.last, *again)]


def _ends_bytes(tensors: Tensors, stored: Stored, tensor: int) -> Fraction:
    """What a stage has beside its layers; the very same tensors, as a vision tower's layers have them, count once."""
    number, known = Counter(map(id, tensors)), {id(each): each for each in tensors}
    return sum(
        (number[key] * _tensor_bytes(each, stored, tensor, _Place(each.module)) for key, each in known.items()),
        Fraction(0),
    )


def _layers_bytes(layers: tuple[Tensors, ...], stored: Stored, tensor: int) -> list[Fraction]:
    """Bytes of each layer; layers of the very same tensors that are stored alike are counted once."""
    counted: dict[object, Fraction] = {}
    sizes = []
    for index, layer in enumerate(layers):
        kind = (tuple(map(id, layer)), sign_of(stored.rules, index))
        if kind not in counted:
            counted[kind] = _layer_bytes(layer, stored, tensor, index)
        sizes.append(counted[kind])
    return sizes


def _layer_bytes(tensors: Tensors, stored: Stored, tensor: int, layer: int) -> Fraction:
    return sum(
        (_tensor_bytes(each, stored, tensor, _Place(f"layers.{layer}.{each.module}", layer)) for each in tensors),
        Fraction(0),
    )


def _draft_bytes(count: ParameterCount, stored: Stored, tensor: int) -> Fraction:
    """Checkpoints number draft layers behind the model's own, or call them `mtp`."""
    if not count.draft:
        raise ModelConfigError(
            "num_nextn_predict_layers: the config has no layers for multi-token prediction that the planner knows:"
            " state the size of the weights with the drafter"
        )
    first = len(count.layers)
    return sum(
        (
            _tensor_bytes(
                each, stored, tensor, _Place(f"layers.{first + index}.{each.module}", first + index, f"mtp.{index}")
            )
            for index, layer in enumerate(count.draft)
            for each in layer
        ),
        Fraction(0),
    )


def _tensor_bytes(each: Tensor, stored: Stored, tensor: int, place: _Place) -> Fraction:
    if each.part in ("embedding", "head"):
        return _table_bytes(each, stored, tensor)
    again = each.shard(tensor) * stored.plain if stored.absorbs and each.again else 0
    form = stored_as(stored.rules, place.module, place.layer, also=place.also) if each.linear else None
    if form is None:
        return Fraction(each.shard(tensor) * stored.plain + again)
    return _quantised_bytes(each, form, tensor, stored.kernels) + again


def _table_bytes(each: Tensor, stored: Stored, tensor: int) -> Fraction:
    """Vocabularies are padded, then shared out."""
    entries = -(-each.rows // VOCABULARY_STEP) * VOCABULARY_STEP if each.units > 1 else each.rows
    own = -(-entries // tensor) if each.units > 1 else entries
    number = own * each.columns * each.copies
    return number * (Fraction(stored.plain) if stored.tables is None or each.columns == 1 else stored.tables)


def _quantised_bytes(each: Tensor, form: Format, tensor: int, kernels: Kernels) -> Fraction:
    """With the padding of experts, on each GPU."""
    parameters = Fraction(each.shard(tensor))
    if form.padded_experts and each.part == "experts":
        parameters = Fraction(_padded(each, tensor, kernels))
    rows = each.rows * each.copies * Fraction(each.shard(tensor), each.parameters)
    return parameters * form.parameter + form.row * rows


def _padded(each: Tensor, tensor: int, kernels: Kernels) -> int:
    """Triton pads inputs, Marlin the hidden size and the width that a GPU has of an expert."""
    up = each.units == each.rows
    outputs = -(-each.rows // tensor) if up else each.rows
    inputs = each.columns if up else -(-each.columns // tensor)
    if kernels == "Triton":
        return each.copies * outputs * _rounded(inputs, TRITON_STEP)
    steps = MARLIN_STEPS if up else MARLIN_STEPS[::-1]
    return each.copies * _rounded(outputs, steps[1]) * _rounded(inputs, steps[0])


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step
