"""What a drafter adds to a model."""

from collections.abc import Mapping
from typing import Any

import pytest

from kvquota_api.memory.errors import EngineUnknownError, ModelConfigError
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.layers import Attention, Latent, Layer, Mamba1State, ModelShape
from kvquota_api.memory.vllm.speculation import Speculation, speculation_of

FULL: Layer = (Attention(8, 128, 128),)
SLIDING: Layer = (Attention(8, 128, 128, window=512),)
HEAD: Layer = (Attention(2, 64, 64),)
STATE: Layer = (Mamba1State(64, 16, 4),)
DRAFTER = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
}
DEEPSEEK_DRAFTER = DRAFTER | {
    "model_type": "deepseek_v3",
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}


def shape(*layers: Layer, drafts: tuple[Layer, ...] = ()) -> ModelShape:
    return ModelShape(
        architecture="LlamaForCausalLM",
        model_type="llama",
        layers=layers,
        draft_layers=drafts,
        heads=8,
        vocabulary=1024,
        max_positions=4096,
        dtype="bf16",
    )


def asked(config: Mapping[str, Any] | None = None, tokens: int = 0, layers: int = 0) -> EngineInputs:
    return EngineInputs(engine="vLLM", speculative=config, speculative_tokens=tokens, draft_layers=layers)


@pytest.mark.parametrize(
    ("model", "inputs", "speculation"),
    [
        pytest.param(shape(FULL), asked(), Speculation(), id="nothing asked, nothing added"),
        pytest.param(
            shape(FULL),
            asked({"method": "ngram", "num_speculative_tokens": 3}),
            Speculation("ngram", 3),
            id="n-grams have no layers",
        ),
        pytest.param(
            shape(FULL, drafts=(HEAD,)),
            asked({"method": "deepseek_mtp"}, tokens=2),
            Speculation("mtp", 2, (HEAD,)),
            id="prediction heads are the model's own, by any of their names",
        ),
        pytest.param(
            shape(FULL),
            asked(
                {
                    "method": "eagle3",
                    "num_speculative_tokens": 2,
                    "model": DRAFTER | {"architectures": ["LlamaForCausalLMEagle3"]},
                }
            ),
            Speculation("eagle3", 2, (HEAD,)),
            id="an EAGLE drafter is read from its config",
        ),
        pytest.param(
            shape(FULL),
            asked(
                {
                    "method": "draft_model",
                    "num_speculative_tokens": 2,
                    "model": DRAFTER | {"architectures": ["LlamaForCausalLM"]},
                }
            ),
            Speculation("draft_model", 2, (HEAD,)),
            id="a small model too",
        ),
        pytest.param(
            shape(SLIDING, SLIDING),
            asked({"method": "draft_model", "num_speculative_tokens": 2, "model": DRAFTER}),
            Speculation("draft_model", 2, ((Attention(2, 64, 64, window=512),),)),
            id="the window of all layers of the model is the drafter's too",
        ),
        pytest.param(
            shape(FULL),
            asked({"method": "draft_model", "num_speculative_tokens": 2, "model": DRAFTER | {"model_type": "mistral"}}),
            Speculation("draft_model", 2, (HEAD,)),
            id="the window of all its own is not heard",
        ),
        pytest.param(
            shape(FULL),
            asked({"method": "draft_model", "num_speculative_tokens": 2, "model": DEEPSEEK_DRAFTER}),
            Speculation("draft_model", 2, ((Latent(512, 64),),)),
            id="latents have none",
        ),
        pytest.param(
            shape(FULL, SLIDING),
            asked({"method": "eagle", "num_speculative_tokens": 2, "model": "some/eagle"}, layers=2),
            Speculation("eagle", 2, (FULL, FULL)),
            id="layers without a config are like the model's full attention",
        ),
        pytest.param(shape(FULL), asked(tokens=4), Speculation("ngram_gpu", 4), id="tokens alone add no layers"),
        pytest.param(
            shape(FULL, drafts=(HEAD,)), asked(layers=1), Speculation("mtp", 1, (HEAD,)), id="as many layers as heads"
        ),
        pytest.param(shape(FULL), asked(tokens=3, layers=1), Speculation("eagle", 3, (FULL,)), id="other layers"),
    ],
)
def test_speculation(model: ModelShape, inputs: EngineInputs, speculation: Speculation) -> None:
    assert speculation_of(model, inputs) == speculation


@pytest.mark.parametrize(
    ("inputs", "error", "text"),
    [
        pytest.param(
            asked({"method": "magic"}, tokens=1), EngineUnknownError, "method 'magic' is not known: use", id="method"
        ),
        pytest.param(asked({}, tokens=1), EngineUnknownError, "method None is not known", id="no method"),
        pytest.param(asked({"method": "mtp"}), EngineUnknownError, "num_speculative_tokens is missing", id="no tokens"),
        pytest.param(
            asked({"method": "mtp", "num_speculative_tokens": 0}), EngineUnknownError, "is 0: give", id="zero tokens"
        ),
        pytest.param(
            asked({"method": "ngram", "num_speculative_tokens": 10**20}),
            EngineUnknownError,
            "give a number from 1 to 1024",
            id="more tokens than any engine drafts",
        ),
        pytest.param(
            EngineInputs("vLLM", speculative_tokens=1025), EngineUnknownError, "speculative tokens: 1025", id="so too"
        ),
        pytest.param(
            EngineInputs("vLLM", draft_layers=257), EngineUnknownError, "draft layers: 257", id="too many layers"
        ),
        pytest.param(
            EngineInputs("vLLM", draft_layers=5, speculative={"method": "ngram", "num_speculative_tokens": 2}),
            EngineUnknownError,
            "a drafter of method ngram keeps none",
            id="layers of a drafter that has none",
        ),
        pytest.param(
            asked({"method": "ngram", "num_speculative_tokens": "3"}),
            EngineUnknownError,
            "is '3': give",
            id="text for tokens",
        ),
        pytest.param(asked({"method": "mtp"}, tokens=1), ModelConfigError, "num_nextn_predict_layers", id="no heads"),
        pytest.param(
            asked({"method": "eagle", "model": "some/eagle"}, tokens=1),
            EngineUnknownError,
            "the drafter 'some/eagle' is not known: give its config",
            id="a drafter without a config",
        ),
    ],
)
def test_drafter_that_cannot_be_told_is_refused(inputs: EngineInputs, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        speculation_of(shape(FULL), inputs)


def test_model_without_full_attention_has_no_layer_to_draft_like() -> None:
    with pytest.raises(EngineUnknownError, match="no layer of full attention for 1 draft layers"):
        speculation_of(shape(STATE, SLIDING), asked(tokens=1, layers=1))


@pytest.mark.parametrize(
    ("speculation", "retained"),
    [
        pytest.param(Speculation("mtp", 3, (HEAD, HEAD)), 2, id="several heads read ahead"),
        pytest.param(Speculation("mtp", 3, (HEAD,)), 0, id="one does not"),
        pytest.param(Speculation("mtp", 1, (HEAD, HEAD)), 0, id="nor several for one token"),
        pytest.param(Speculation("eagle", 3, (HEAD, HEAD)), 0, id="nor other drafters"),
    ],
)
def test_tokens_kept_below_a_window(speculation: Speculation, retained: int) -> None:
    assert speculation.retained_tokens == retained
