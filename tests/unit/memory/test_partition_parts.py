"""What lies beside the KV cache: counted, estimated or stated."""

from typing import Any

import pytest

from kvquota_api.amounts import Bytes
from kvquota_api.memory.errors import UnknownArchitectureError
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.reading import read_model
from kvquota_api.memory.parameters import weights_per_gpu
from kvquota_api.memory.partition import Parts, estimated_parts
from kvquota_api.memory.presets import load_preset

GIB = 2**30
LLAMA = load_preset("llama-3.1-8b")
MODEL = read_model(LLAMA)
WEIGHTS = weights_per_gpu(LLAMA).size
VOCABULARY = 128_256


def parts(inputs: EngineInputs, config: dict[str, Any] | None = None, **stated: Bytes) -> Parts:
    return estimated_parts(config or LLAMA, MODEL, inputs, **stated)


def activation(sequences: int) -> int:
    return int(39.6 * sequences * VOCABULARY + GIB / 10)


def test_everything_is_estimated_and_said() -> None:
    assert parts(EngineInputs("vLLM", version="0.32.0")) == Parts(
        weights=WEIGHTS,
        activation=Bytes(activation(1024)),
        other=Bytes(GIB + 15 * GIB // 100),
        graphs=Bytes(GIB),
        assumptions=(
            "weights are counted from the model's config: 14.96 GiB on the fullest GPU",
            "activation is estimated at 4.94 GiB for 1024 sequences in a step and 128256 entries of the vocabulary, as"
            " vLLM 0.11 logged on H100; other samplers and cards need less",
            "CUDA context, communication and graphs are estimated at 1.15 GiB",
        ),
    )


def test_what_is_stated_is_not_estimated() -> None:
    stated = parts(EngineInputs("vLLM"), weights=Bytes(1), activation=Bytes(2), other=Bytes(3))

    assert stated == Parts(Bytes(1), Bytes(2), Bytes(3), graphs=Bytes(0), assumptions=())


def test_stated_weights_help_where_they_cannot_be_counted() -> None:
    unknown = {**LLAMA, "model_type": "rwkv"}

    assert parts(EngineInputs("vLLM"), unknown, weights=Bytes(GIB)).weights == GIB
    with pytest.raises(UnknownArchitectureError, match="state their size on one GPU"):
        parts(EngineInputs("vLLM"), unknown)


@pytest.mark.parametrize(
    ("inputs", "sequences"),
    [
        (EngineInputs("vLLM", max_num_seqs=8), 8),
        (EngineInputs("vLLM"), 1024),
        (EngineInputs("vLLM", platform="cuda-sm80"), 256),
        (EngineInputs("vLLM", version="0.7.3"), 256),
        (EngineInputs("SGLang"), 256),
        (EngineInputs("TensorRTLLM", max_num_seqs=64), 64),
    ],
    ids=["as stated", "on Hopper", "on Ampere", "before V1", "of SGLang", "of TensorRT-LLM, as stated"],
)
def test_the_activation_grows_with_the_sequences_of_a_step(inputs: EngineInputs, sequences: int) -> None:
    assert parts(inputs).activation == pytest.approx(activation(sequences), abs=1)


def test_llama_cpp_computes_few_tokens_at_once_and_keeps_no_graphs() -> None:
    planned = parts(EngineInputs("LlamaCpp", weight_dtype="q8_0"))

    assert (planned.activation, planned.graphs) == (4 * 512 * VOCABULARY + GIB // 10, 0)
    assert planned.assumptions[1] == "compute buffers are estimated at 352.9 MiB, for 512 tokens at once"


def test_on_the_cpu_there_are_no_graphs() -> None:
    assert parts(EngineInputs("vLLM", platform="cpu")).graphs == 0


def test_parallelism_and_types_reach_the_weights() -> None:
    inputs = EngineInputs("vLLM", tensor=2, pipeline=2, weight_dtype="fp8", dtype="fp32")

    assert parts(inputs).weights == weights_per_gpu(LLAMA, "fp8", tensor=2, pipeline=2, dtype="fp32").size


DRAFTED = load_preset("deepseek-v3")
OWN_DRAFTS = {"method": "deepseek_mtp", "num_speculative_tokens": 1}
OTHER_DRAFTS = {"method": "eagle3", "model": "somewhere", "num_speculative_tokens": 3}
NOT_COUNTED = "the weights of the drafter are not counted: state the size of all weights where it is large"


def drafted(**how: Any) -> Parts:
    inputs = EngineInputs("vLLM", tensor=8, max_num_seqs=8, **how)
    return estimated_parts(DRAFTED, read_model(DRAFTED), inputs)


@pytest.mark.parametrize("how", [{"speculative": OWN_DRAFTS}, {"draft_layers": 1}], ids=["by name", "by number"])
def test_layers_for_multi_token_prediction_are_counted_with_the_weights(how: dict[str, Any]) -> None:
    assert drafted(**how).weights == weights_per_gpu(DRAFTED, tensor=8, drafts="WithDraft").size


@pytest.mark.parametrize("how", [{"speculative": OTHER_DRAFTS}, {"draft_layers": 2}], ids=["by name", "by number"])
def test_a_drafter_of_its_own_is_not_counted_and_said(how: dict[str, Any]) -> None:
    planned = drafted(**how)

    assert planned.weights == weights_per_gpu(DRAFTED, tensor=8).size
    assert NOT_COUNTED in planned.assumptions


def test_what_images_need_is_said_to_be_missing() -> None:
    seeing = load_preset("gemma-4-26b-a4b")

    planned = estimated_parts(seeing, read_model(seeing), EngineInputs("vLLM"))

    assert "what encoding images needs is not in the activation: it depends on their size and number" in (
        planned.assumptions
    )
