"""Whatever an engine shows as its metrics: what is read of it can be reported, and a life of it has one name."""

import json
import math
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from kvquota_api.usage import EngineUsage, InForce, UsageReport, decode_report, encode
from kvquota_sidecar.engines.lives import Lives
from kvquota_sidecar.engines.llamacpp import read_llamacpp, read_slots
from kvquota_sidecar.engines.reading import Reading
from kvquota_sidecar.engines.sglang import SglangInfo, read_info, read_sglang
from kvquota_sidecar.engines.vllm import read_vllm
from kvquota_sidecar.ledger.asking import EngineSample

NAMES = [
    *("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "vllm:num_requests_running", "vllm:cache_config_info"),
    *("vllm:num_requests_waiting", "vllm:num_preemptions_total", "vllm:prompt_tokens_total"),
    *("sglang:num_used_tokens", "sglang:token_usage", "sglang:mamba_usage", "sglang:max_total_num_tokens"),
    *("sglang:page_size", "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:engine_startup_time"),
    *("llamacpp:requests_processing", "llamacpp:requests_deferred", "llamacpp:prompt_tokens_total"),
    "process_start_time_seconds",
]
LABELS = ["engine", "dp_rank", "priority", "num_gpu_blocks", "block_size", "kv_cache_size_tokens", "pid", "model_name"]
WORDS = st.one_of(
    st.sampled_from(["0", "1", "2", "16", "512", "None", "", "-1", "1e3", "9" * 15, "9" * 30, "\u0664", "\u00b2"]),
    st.text(st.characters(codec="utf-8", exclude_characters='"\\\n\r'), max_size=4),
)
VALUES = st.one_of(
    st.sampled_from(["0", "0.5", "1", "1.0", "1.5", "3", "-1", "NaN", "+Inf", "1e300", "9007199254740993", "x", ""]),
    st.floats().map(repr),
)


@st.composite
def lines(draw: st.DrawFn) -> str:
    """One sample, or something like it."""
    labels = draw(st.dictionaries(st.sampled_from(LABELS), WORDS, max_size=4))
    inside = ",".join(f'{name}="{value}"' for name, value in labels.items())
    opening = draw(st.sampled_from(["", "# HELP ", " "])) if draw(st.integers(0, 9)) == 0 else ""
    return f"{opening}{draw(st.sampled_from(NAMES))}{{{inside}}} {draw(VALUES)}"


TEXTS = st.one_of(
    st.lists(st.one_of(lines(), lines(), st.text(max_size=9)), max_size=12).map("\n".join),
    st.lists(
        st.sampled_from(["a", "{", "}", '"', "\\", "=", ",", " ", "\n", "vllm:num_requests_running"]), max_size=40
    ).map("".join),
)
NUMBERS = st.sampled_from([None, -(2**70), -2, 0, 1, 16, 600, 600, 1600, 1600, 2**62, 2**70, 0.5, "1"])


def believable(reading: Reading | None) -> None:
    """It can be sent to the operator and is read there, and no part is larger than the whole."""
    if reading is None:
        return
    sample: EngineSample = reading.sample
    told = {name: getattr(sample, name) for name in ("blocks", "block_tokens", "used_blocks", "running", "waiting")}
    engine = EngineUsage(state="Ready", **told)
    report = UsageReport(epoch="e", sequence=1, started_at=0.0, in_force=InForce(), engine=engine)
    assert decode_report(encode(report)) == report
    assert all(value is None or type(value) is int for value in told.values())
    assert [each.rank for each in sample.ranks] == sorted({each.rank for each in sample.ranks})
    if sample.ranks and sample.running is not None:
        assert sum(each.running or 0 for each in sample.ranks) == sample.running
    assert sample.blocks is None or sample.blocks > 0


@example('vllm:cache_config_info{num_gpu_blocks="999999999999999",block_size="999999999999999"} 1')
@given(TEXTS)
def test_metrics_of_vllm_can_be_reported_whatever_they_are(text: str) -> None:
    reading = read_vllm(text)
    believable(reading)
    if reading is not None and reading.sample.blocks is not None and reading.sample.used_blocks is not None:
        assert reading.sample.used_blocks <= reading.sample.blocks * max(1, len(reading.sample.ranks))


@example("vllm:kv_cache_usage_perc{} 0\nsglang:page_size{} 2147483648.0", {})
@example("vllm:kv_cache_usage_perc{} 0", {"page_size": 1, "max_total_num_tokens": 2**62})
@given(TEXTS, st.fixed_dictionaries({}, optional={"page_size": NUMBERS, "max_total_num_tokens": NUMBERS}))
def test_metrics_of_sglang_can_be_reported_whatever_they_are(text: str, info: dict[str, Any]) -> None:
    believable(read_sglang(text, read_info(json.dumps(info).encode())))


SLOTS = st.lists(
    st.fixed_dictionaries(
        {"is_processing": st.booleans()}, optional={"n_ctx": NUMBERS, "n_prompt_tokens": NUMBERS, "id": NUMBERS}
    ),
    max_size=4,
)


@given(
    TEXTS, st.binary(max_size=5), st.one_of(SLOTS.map(lambda slots: json.dumps(slots).encode()), st.binary(max_size=30))
)
def test_metrics_and_slots_of_llamacpp_can_be_reported_whatever_they_are(text: str, start: bytes, body: bytes) -> None:
    believable(read_llamacpp(text, start, read_slots(body)))


@given(st.lists(TEXTS, max_size=6))
def test_an_engine_has_one_name_at_a_time_whatever_it_shows(texts: list[str]) -> None:
    clock = iter(range(1000, 2000))
    lives = Lives(lambda: float(next(clock)))
    for text in texts:
        for reading in (read_vllm(text), read_sglang(text, SglangInfo())):
            if reading is not None:
                name = lives.name(reading.marks)
                assert lives.name(reading.marks) == name
                assert name is None or math.isfinite(name)
