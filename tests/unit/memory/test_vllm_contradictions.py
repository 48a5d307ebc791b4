"""What vLLM would refuse, or would not know of: the plan says it."""

from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.reading import read_model
from kvquota_api.memory.presets import load_preset
from kvquota_api.memory.vllm.resolving import settle

LLAMA = read_model(load_preset("llama-3.1-8b"))


def test_more_sequences_than_tokens_in_a_step_are_warned_of() -> None:
    asked = EngineInputs("vLLM", max_num_seqs=512, max_num_batched_tokens=256)
    assert settle(LLAMA, asked).warnings == (
        "max_num_seqs 512 is more than max_num_batched_tokens 256: vLLM refuses it",
    )


def test_speculation_without_a_drafter_is_said() -> None:
    sentence = "the drafter keeps no cache of its own: give its layers, or the speculative config"
    alone = EngineInputs("vLLM", speculative_tokens=3)
    with_layers = EngineInputs("vLLM", speculative_tokens=3, draft_layers=1)
    assert [sentence in settle(LLAMA, asked).assumptions for asked in (alone, with_layers)] == [True, False]
