"""The fake engine's command line and the limits of its settings."""

import re

import pytest

from kvquota_fakeengine.__main__ import Options, read_options
from kvquota_fakeengine.settings import EngineSettings, Speech


def test_without_flags_everything_has_its_default() -> None:
    settings = EngineSettings(prompt_tokens_details=False)
    assert read_options([]) == Options("127.0.0.1", 8000, "127.0.0.1", None, settings)


def test_the_flags_that_vllm_takes_size_the_pool_and_the_last_one_wins() -> None:
    flags = "--host 0.0.0.0 --port 9 --model /m --served-model-name llama --block-size 32 --max-model-len 2048"
    flags += " --kv-cache-memory-bytes 16777216 --kv-bytes-per-token 1024 --scheduling-policy priority"
    flags += " --enable-prompt-tokens-details --max-num-seqs 8 --max-num-batched-tokens 512 --host 127.0.0.1"
    flags += " --data-parallel-size 2 --api-server-count 3"
    options = read_options(flags.split())
    expected = EngineSettings(
        model="llama",
        block_tokens=32,
        blocks=512,
        max_model_len=2048,
        max_sequences=8,
        max_batched_tokens=512,
        ranks=2,
        api_servers=3,
        by_priority=True,
        kv_bytes_per_token=1024,
    )
    assert options == Options("127.0.0.1", 9, "127.0.0.1", None, expected)


def test_what_vllm_has_no_flag_for_can_be_set_too() -> None:
    flags = "--decode-rate 50 --prefill-rate 1000 --answer-tokens 7 --freeing-delay-ms 250 --control-port 9000"
    flags += " --speech sglang"
    options = read_options(flags.split())
    settings = options.settings
    assert (settings.decode_rate, settings.prefill_rate, settings.answer_tokens) == (50, 1000, 7)
    assert (settings.freeing_delay_seconds, options.control_port) == (0.25, 9000)
    assert settings.speech is Speech.SGLANG


def test_an_override_of_the_block_count_beats_the_bytes() -> None:
    flags = ["--num-gpu-blocks-override", "300", "--kv-cache-memory-bytes", "1"]
    assert read_options(flags).settings.blocks == 300


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"blocks": 64, "block_tokens": 16, "max_model_len": 1024}, "give the KV cache at least 65 blocks"),
        ({"max_sequences": 0}, "must be above 0"),
        ({"decode_rate": 0.0}, "must be above 0"),
        ({"ranks": 0}, "must be above 0"),
        ({"api_servers": 0}, "must be above 0"),
    ],
    ids=["a pool that does not hold one request", "no sequences", "no progress", "no rank", "no server"],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        EngineSettings(**changes)  # type: ignore[arg-type]  # the table mixes whole numbers and rates


def test_the_command_line_refuses_them_with_the_same_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(["--num-gpu-blocks-override", "10"])
    assert "10 blocks of 16 tokens do not hold one request of 4096 tokens" in capsys.readouterr().err
