"""Start-up logs of llama.cpp and ik_llama.cpp, in the forms of three years."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from kvquota_api.memory.startup_log import LogFacts, Size, kv_memory, parse_log
from kvquota_api.memory.startup_log.facts import CacheFacts, Notice, OutOfMemory, RankFacts
from kvquota_api.memory.startup_log.figures import Word

LOGS = Path(__file__).parents[2] / "data" / "startup_logs"
HALF_CENT = -(-(2**20) // 200)  # bytes: how far a MiB with two decimals may be off


def facts_of(name: str) -> LogFacts:
    return parse_log((LOGS / name).read_text())


def mib(number: str, line: int, parts: int = 1) -> Size:
    return Size(round(Fraction(number) * 2**20), parts * HALF_CENT, line)


RANKS = {
    "llamacpp-b3600-old.log": (
        RankFacts("CUDA0", weights=mib("4156", 10), allocated_kv=mib("512", 15), compute=mib("296.01", 17)),
        RankFacts(None, allocated_kv=mib("512", 16)),
        RankFacts("CUDA_Host", compute=mib("16.01", 18)),
    ),
    "ik-llamacpp-mla.log": (
        RankFacts("CUDA0", allocated_kv=mib("583.31", 4)),
        RankFacts("CUDA1", allocated_kv=mib("583.31", 5)),
        RankFacts(None, allocated_kv=mib("1166.62", 6)),
    ),
    "llamacpp-b6000-swa.log": (
        RankFacts("CUDA0", weights=mib("4731.22", 8), allocated_kv=mib("552", 19, parts=2), compute=mib("517.12", 24)),
        RankFacts("CPU_Mapped", weights=mib("340", 9)),
    ),
    "llamacpp-b10107-slots.log": (
        RankFacts(
            "CUDA0",
            weights=mib("9884.12", 5),
            allocated_kv=Size(mib("4320", 11).bytes + mib("1.12", 11).bytes, 2 * HALF_CENT, 11),
            compute=mib("304", 15),
        ),
    ),
}


@pytest.mark.parametrize(("name", "ranks"), RANKS.items(), ids=RANKS)
def test_each_device_has_its_buffers(name: str, ranks: tuple[RankFacts, ...]) -> None:
    facts = facts_of(name)
    assert (facts.engine, facts.starts, facts.ranks) == ("LlamaCpp", 1, ranks)


CACHES = {
    "llamacpp-b3600-old.log": (),
    "ik-llamacpp-mla.log": (),
    "llamacpp-b6000-swa.log": (
        CacheFacts(None, mib("512", 20), 32768, 4, 1, "q8_0", "f16"),
        CacheFacts(None, mib("40", 23), 1024, 20, 1, "q8_0", "f16"),
    ),
    "llamacpp-b10107-slots.log": (
        CacheFacts(None, mib("4320", 12), 8 * 2048, 27, 8, "f16", "f16"),
        CacheFacts(None, mib("1.12", 14), 8, 27, 8, "f32", "f32"),
    ),
}


@pytest.mark.parametrize(("name", "caches"), CACHES.items(), ids=CACHES)
def test_each_cache_has_its_cells(name: str, caches: tuple[CacheFacts, ...]) -> None:
    assert facts_of(name).caches == caches


SUMS = {
    "the sum that it prints": ("llamacpp-b3600-old.log", mib("512", 16)),
    "the sum of a latent": ("ik-llamacpp-mla.log", mib("1166.62", 6)),
    "its caches one by one": ("llamacpp-b6000-swa.log", mib("552", 20, parts=2)),
}


@pytest.mark.parametrize(("name", "expected"), SUMS.values(), ids=SUMS)
def test_the_whole_cache_is_counted_once(name: str, expected: Size) -> None:
    assert kv_memory(facts_of(name)) == expected


def test_the_sums_of_several_caches_add_up() -> None:
    text = "".join(
        f"KV self size  =  {size} MiB, K (f16):  1.00 MiB, V (f16):  1.00 MiB\n" for size in ("512.00", "40.00")
    )
    assert kv_memory(parse_log(text)) == mib("552", 1, parts=2)


def test_where_only_devices_print_their_buffers_they_add_up() -> None:
    text = "CUDA0 KV buffer size =   512.00 MiB\nCUDA1 KV buffer size =   256.00 MiB\n"
    assert kv_memory(parse_log(text)) == mib("768", 1, parts=2)


VERSIONS = {
    "llamacpp-b3600-old.log": Word("3600", 1),
    "llamacpp-b6000-swa.log": Word("6001", 1),
    "llamacpp-b10107-slots.log": Word("10107", 1),
    "ik-llamacpp-mla.log": None,
}


@pytest.mark.parametrize(("name", "version"), VERSIONS.items(), ids=VERSIONS)
def test_the_build_is_the_version(name: str, version: Word | None) -> None:
    assert facts_of(name).version == version


def test_properties_are_read_under_their_own_names() -> None:
    settings = {each.name: (each.value, each.line) for each in facts_of("llamacpp-b6000-swa.log").settings}
    assert settings == {
        "arch": ("gemma4", 2),
        "n_ctx_train": ("131072", 3),
        "n_layer": ("42", 4),
        "n_head": ("8", 5),
        "n_swa": ("512", 7),
        "n_seq_max": ("1", 11),
        "n_ctx": ("32768", 12),
        "n_ctx_per_seq": ("32768", 13),
        "n_batch": ("2048", 14),
        "n_ubatch": ("512", 15),
        "flash_attn": ("1", 16),
        "kv_unified": ("false", 17),
        "n_slots": ("1", 25),
    }


PROPERTIES = {
    "llm_load_print_meta: n_embd_head_v    = 128\n": {"n_embd_head_v": "128"},
    "main: n_parallel is set to auto, using n_parallel = 4 and kv_unified = true\n": {
        "n_parallel": "4",
        "kv_unified": "true",
    },
}


@pytest.mark.parametrize(("line", "expected"), PROPERTIES.items(), ids=("a size", "two of one line"))
def test_a_property_is_read_wherever_it_stands(line: str, expected: dict[str, str]) -> None:
    assert {each.name: each.value for each in parse_log(line).settings} == expected


def test_a_property_is_a_whole_name() -> None:
    assert parse_log("xn_ctx = 4096\n").settings == ()


def test_an_allocation_that_failed_is_one_of_the_devices() -> None:
    assert facts_of("llamacpp-b10107-slots.log").out_of_memory == (OutOfMemory(17, None, mib("16384", 17), gpu=1),)


def test_sliding_layers_that_keep_every_token_are_noticed() -> None:
    text = "llama_kv_cache_unified_iswa: using full-size SWA cache (ref: a discussion)\n"
    assert parse_log(text).notices == (Notice("HybridDisabled", 1),)


def test_cells_without_a_size_before_them_are_no_cache() -> None:
    assert parse_log("8192 cells,  32 layers,  1 seqs), K (f16):  512.00 MiB, V (f16):  512.00 MiB").caches == ()
