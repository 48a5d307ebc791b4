"""Bytes of a token by the names of types that vLLM takes."""

from dataclasses import replace

import pytest

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.vllm.dtypes import compute_dtype, kv_format


@pytest.mark.parametrize(
    ("name", "head", "latent"),
    [
        pytest.param("bfloat16", 512, 1152, id="two bytes"),
        pytest.param("fp16", 512, 1152, id="an alias"),
        pytest.param("float32", 1024, 2304, id="four bytes"),
        pytest.param("fp8", 256, 576, id="one byte"),
        pytest.param("fp8_e5m2", 256, 576, id="the other fp8"),
        pytest.param("int8_per_token_head", 264, 584, id="one byte and two fp32 scales"),
        pytest.param("fp8_per_token_head", 264, 584, id="fp8 with scales"),
        pytest.param("int4_per_token_head", 136, 296, id="half a byte and two fp32 scales"),
        pytest.param("nvfp4", 144, 324, id="half a byte and a scale for 16"),
        pytest.param("fp8_ds_mla", 256, 656, id="DeepSeek's packed latent"),
        pytest.param("nvfp4_ds_mla", 256, 352, id="the same in four bits"),
    ],
)
def test_bytes_of_a_token(name: str, head: int, latent: int) -> None:
    form = kv_format(name)
    assert (form.head_bytes(128, 128), form.latent_bytes(576)) == (head, latent)


@pytest.mark.parametrize("name", ["int4_per_token_head", "nvfp4", "fp8"])
def test_type_that_no_backend_packs_takes_a_byte_for_every_value(name: str) -> None:
    assert replace(kv_format(name), packed=False).head_bytes(128, 128) == 256


@pytest.mark.parametrize(("name", "quantised"), [("bfloat16", False), ("fp8", True), ("fp8_per_token_head", True)])
def test_types_narrower_than_compute_are_quantised(name: str, quantised: bool) -> None:
    assert kv_format(name).quantised is quantised


def test_kv_type_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        EngineUnknownError, match=r"KV cache dtype 'turboquant_k8v4' is not known for vLLM: use auto, .*fp8"
    ):
        kv_format("turboquant_k8v4")


@pytest.mark.parametrize(("name", "spelt"), [("half", "float16"), ("bf16", "bfloat16"), ("float32", "float32")])
def test_compute_type_is_spelt_as_vllm_does(name: str, spelt: str) -> None:
    assert compute_dtype(name, "dtype") == spelt


def test_compute_type_that_is_not_known_is_refused() -> None:
    with pytest.raises(EngineUnknownError, match="state dtype 'fp8' is not known for vLLM: use auto, float32"):
        compute_dtype("fp8", "state dtype")
