"""What of a model config stands beside its layers: names, parts, lengths, types, quantisation; and what is refused."""

from typing import Any

import pytest

from kvquota_api.memory.errors import ModelConfigError, PlanError, UnknownArchitectureError
from kvquota_api.memory.models.families.table import BY_ARCHITECTURE, BY_TYPE, ENTRIES
from kvquota_api.memory.models.layers import Attention, ModelShape, Quantisation
from kvquota_api.memory.models.reading import read_model

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


NESTED: list[Any] = []
for _ in range(5000):
    NESTED = [NESTED]


def config(**changes: Any) -> dict[str, Any]:
    """The small llama with fields changed."""
    return {**LLAMA, **changes}


def test_reads_a_model() -> None:
    assert read_model(LLAMA) == ModelShape(
        architecture="LlamaForCausalLM",
        model_type="llama",
        layers=((Attention(2, 64, 64),),) * 2,
        draft_layers=(),
        heads=8,
        vocabulary=1000,
        max_positions=4096,
        dtype="bf16",
        state_dtype=None,
        quantisation=None,
        encoder_decoder=False,
        usual_positions=4096,
    )


def test_a_model_type_is_enough_where_it_names_a_family() -> None:
    assert read_model(config(architectures=None)) == read_model(LLAMA)


def test_every_name_of_a_family_stands_once() -> None:
    names = [name for entry in ENTRIES for name in entry.architectures]
    types = [name for entry in ENTRIES for name in entry.types]

    assert (len(names), len(types)) == (len(BY_ARCHITECTURE), len(BY_TYPE))


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        pytest.param(
            {"architectures": ["Odd"]}, UnknownArchitectureError, "architectures: 'Odd' is not known", id="architecture"
        ),
        pytest.param({"architectures": [3]}, UnknownArchitectureError, "architectures: 3 is not", id="no name at all"),
        pytest.param(
            {"architectures": "Llama"}, ModelConfigError, "architectures: 'Llama' is not a list", id="no list"
        ),
        pytest.param(
            {"architectures": [], "model_type": "odd"}, UnknownArchitectureError, "model_type: 'odd' is not", id="type"
        ),
        pytest.param(
            {"architectures": None, "model_type": None},
            UnknownArchitectureError,
            "model_type: None is not",
            id="neither",
        ),
        pytest.param({"model_type": 7}, ModelConfigError, "model_type: 7 is not a name", id="a type that is no name"),
        pytest.param(
            {"model_type": "mamba"},
            ModelConfigError,
            "model_type: 'mamba' is not a type of LlamaFor",
            id="another type",
        ),
        pytest.param(
            {"num_hidden_layers": None}, ModelConfigError, "num_hidden_layers: None is not a whole", id="none"
        ),
        pytest.param({"num_hidden_layers": 0}, ModelConfigError, "num_hidden_layers: 0 is not a whole", id="zero"),
        pytest.param({"num_hidden_layers": True}, ModelConfigError, "num_hidden_layers: True is not", id="a boolean"),
        pytest.param({"hidden_size": -1}, ModelConfigError, "hidden_size: -1 is not a whole number", id="negative"),
        pytest.param({"hidden_size": 512.0}, ModelConfigError, "hidden_size: 512.0 is not a whole", id="a fraction"),
        pytest.param({"vocab_size": 2**40}, ModelConfigError, "vocab_size: 1099511627776 is not a whole", id="huge"),
        pytest.param({"vocab_size": float("nan")}, ModelConfigError, "vocab_size: nan is not a whole", id="no number"),
        pytest.param({"layer_types": "full"}, ModelConfigError, "layer_types: 'full' is not a list", id="a word"),
        pytest.param(
            {"architectures": ["x"] * 5000},
            ModelConfigError,
            "architectures: has 5000 entries, more",
            id="endless list",
        ),
        pytest.param({"vocab_size": NESTED}, ModelConfigError, "vocab_size: a list is not a whole number", id="nested"),
        pytest.param(
            {"model_type": {"a": NESTED}}, ModelConfigError, "model_type: an object is not a name", id="object"
        ),
        pytest.param({"torch_dtype": "int8"}, ModelConfigError, "torch_dtype: 'int8' is none of float32", id="a type"),
        pytest.param({"max_position_embeddings": 0}, ModelConfigError, "max_position_embeddings: 0", id="no positions"),
        pytest.param({"quantization_config": "fp8"}, ModelConfigError, "quantization_config: 'fp8' is not", id="quant"),
        pytest.param(
            {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": "no"},
            ModelConfigError,
            "use_sliding_window: 'no' is neither true nor false",
            id="a flag that is none",
        ),
    ],
)
def test_what_is_wrong_is_an_error_that_names_the_field(
    changes: dict[str, Any], error: type[PlanError], text: str
) -> None:
    with pytest.raises(error, match=text):
        read_model(config(**changes))


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        pytest.param({"torch_dtype": "float16"}, "fp16", id="the old name of the field"),
        pytest.param({"torch_dtype": None, "dtype": "torch.float32"}, "fp32", id="the new one, with torch's prefix"),
        pytest.param({"torch_dtype": None}, None, id="not said"),
    ],
)
def test_the_type_of_the_checkpoint(changes: dict[str, Any], dtype: str | None) -> None:
    assert read_model(config(**changes)).dtype == dtype


YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize(
    ("changes", "longest", "usual"),
    [
        pytest.param({"max_position_embeddings": None}, None, None, id="not said"),
        pytest.param({"n_positions": 1024}, 1024, 1024, id="the least of several"),
        pytest.param({"model_max_length": 8192}, 8192, 8192, id="the length that the model is made for"),
        pytest.param({"rope_scaling": YARN}, 4096, 4096, id="yarn is in the number already"),
        pytest.param({"rope_scaling": {"type": "linear", "factor": 2}}, 8192, 8192, id="linear is not"),
        pytest.param({"rope_scaling": {"factor": None}}, 4096, 4096, id="without a factor"),
        pytest.param({"rope_scaling": {"factor": 0.0001}}, 1, 1, id="one token at least"),
        pytest.param(
            {"rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 3.0}, "sliding_attention": YARN}},
            12288,
            12288,
            id="by kind of layer",
        ),
        pytest.param(
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 3.0}, "sliding_attention": {}}},
            12288,
            12288,
            id="a kind of layer without a factor leaves that of the others",
        ),
        pytest.param(
            {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 1024},
            4096,
            1024,
            id="longrope: unasked only what it was first trained for",
        ),
        pytest.param(
            {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "rope_scaling": {"factor": 8.0}},
            4096,
            4096,
            id="gemma3 is stretched already",
        ),
    ],
)
def test_how_long_a_sequence_may_get(changes: dict[str, Any], longest: int | None, usual: int | None) -> None:
    model = read_model(config(**changes))

    assert (model.max_positions, model.usual_positions) == (longest, usual)


@pytest.mark.parametrize("factor", [0, -1, "2", True, float("nan"), float("inf")])
def test_a_factor_that_is_no_positive_number_is_refused(factor: object) -> None:
    with pytest.raises(ModelConfigError, match=r"rope_scaling\.factor: .* is not a positive number"):
        read_model(config(rope_scaling={"rope_type": "linear", "factor": factor}))


MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        pytest.param({"quant_method": "FP8"}, Quantisation("fp8", None), id="a method"),
        pytest.param(
            {"quant_method": "compressed_tensors"}, Quantisation("compressed-tensors", None), id="one spelling"
        ),
        pytest.param(MODELOPT, Quantisation("modelopt_fp4", "fp8"), id="modelopt's own file"),
        pytest.param({"quantization": {"quant_algo": "W4A8"}}, Quantisation("w4a8", None), id="another algorithm"),
        pytest.param({}, Quantisation("", None), id="nothing said"),
        pytest.param(
            {"quant_method": "fp8", "kv_cache_scheme": "static"}, Quantisation("fp8", None), id="a scheme nobody heeds"
        ),
        pytest.param(
            {"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
            Quantisation("modelopt", "fp8"),
            id="a scheme of 8 bit floats",
        ),
        pytest.param(
            {"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 4, "type": "float"}},
            Quantisation("modelopt", "nvfp4"),
            id="a scheme of 4 bit floats",
        ),
        pytest.param(
            {"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "int"}},
            Quantisation("modelopt", "int8"),
            id="a scheme of whole numbers",
        ),
        pytest.param(
            {"quant_method": "modelopt", "kv_cache_quant_algo": "INT8"},
            Quantisation("modelopt", "int8"),
            id="a named algorithm",
        ),
    ],
)
def test_the_quantisation_that_a_checkpoint_declares(declared: dict[str, Any], expected: Quantisation) -> None:
    model = read_model(config(quantization_config=declared))

    assert model.quantisation == expected


def test_a_vocabulary_may_have_its_padded_name() -> None:
    assert read_model(config(vocab_size=None, padded_vocab_size=2000)).vocabulary == 2000


TEXT = {name: value for name, value in LLAMA.items() if name not in ("architectures", "torch_dtype", "model_type")}


@pytest.mark.parametrize(
    "outer",
    [
        pytest.param(
            {"model_type": "llava", "text_config": TEXT}, id="a part without a name is the wrapper's usual one"
        ),
        pytest.param(
            {"model_type": "mistral3", "text_config": {**TEXT, "model_type": "llama"}}, id="named by its type"
        ),
        pytest.param(
            {"architectures": ["InternVLChatModel"], "llm_config": {**TEXT, "architectures": ["LlamaForCausalLM"]}},
            id="named by its architecture, under another name",
        ),
        pytest.param(
            {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", **TEXT},
            id="fields of the text model among those of the whole",
        ),
        pytest.param(
            {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2_audio", "text_config": TEXT},
            id="named by the text model's architecture, with the type of the whole",
        ),
        pytest.param(
            {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": {**TEXT, "model_type": "llama"}}},
            id="a part of a part",
        ),
    ],
)
def test_the_text_model_of_several_parts(outer: dict[str, Any]) -> None:
    model = read_model({**outer, "torch_dtype": "float16"})

    assert (model.layers, model.dtype, model.vocabulary) == (((Attention(2, 64, 64),),) * 2, "fp16", 1000)


def test_a_quantisation_may_be_declared_inside_the_text_model() -> None:
    text = {**TEXT, "quantization_config": {"quant_method": "awq"}}

    assert read_model({"model_type": "llava", "text_config": text}).quantisation == Quantisation("awq", None)


def test_a_part_leaves_out_what_its_class_has() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}

    model = read_model({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text})

    assert (len(model.layers), model.layers[0], model.heads) == (34, (Attention(4, 256, 256, 1024),), 8)
    assert (model.vocabulary, model.max_positions) == (262208, 131072)


def test_a_vocabulary_may_stand_outside_the_text_model() -> None:
    text = {**TEXT, "vocab_size": None}

    assert read_model({"model_type": "llava", "vocab_size": 77, "text_config": text}).vocabulary == 77


@pytest.mark.parametrize(
    ("outer", "text"),
    [
        pytest.param({"model_type": "llava"}, "text_config: None is not an object", id="no part"),
        pytest.param(
            {"model_type": "llava", "text_config": {**TEXT, "hidden_size": 0}},
            "text_config.hidden_size: 0 is not a whole number",
            id="a field of the part",
        ),
        pytest.param(
            {"model_type": "llava", "text_config": {"model_type": "llava"}},
            "text_config.model_type: LlavaForConditionalGeneration holds no text model",
            id="a part that has parts itself",
        ),
        pytest.param(
            {"model_type": "ultravox", "text_config": TEXT}, "text_config.model_type: None is not known", id="no name"
        ),
    ],
)
def test_a_part_that_is_wrong_is_named(outer: dict[str, Any], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        read_model(outer)
