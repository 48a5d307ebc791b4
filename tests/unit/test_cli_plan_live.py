"""The options of `kvquota plan` against what vLLM 0.32 computes with the same flags: one row for every set of flags."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from kvquota_cli.__main__ import main

DATA = Path(__file__).resolve().parents[1] / "data" / "memory" / "live.json"
LIVE: Final[dict[str, Any]] = json.loads(DATA.read_text())

VALUES: Final = {
    "tp": "--tp",
    "pp": "--pp",
    "kv_cache_memory_bytes": "--kv-memory",
    "max_model_len": "--max-model-len",
    "platform": "--platform",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "block_size": "--block-size",
    "kv_cache_dtype": "--kv-dtype",
    "dtype": "--dtype",
    "mamba_ssm_cache_dtype": "--mamba-ssm-dtype",
    "num_speculative_tokens": "--num-speculative-tokens",
}
SWITCHES: Final = {"enable_prefix_caching": "prefix-caching", "async_scheduling": "async-scheduling"}
NOT_OURS: Final = "mamba_block_size"  # vLLM overwrites it in the mode that it chooses by itself


def rows() -> Iterator[Any]:
    """The first row with each set of flags, where a flag that is on is another than one that is off."""
    seen = set()
    for row in LIVE["rows"]:
        flags = frozenset(f"{name}={value}" if isinstance(value, bool) else name for name, value in row["args"].items())
        if flags not in seen and NOT_OURS not in row["args"]:
            seen.add(flags)
            yield pytest.param(row, id=row["id"])


def options(arguments: Mapping[str, Any]) -> Iterator[str]:
    for name, value in arguments.items():
        if name in VALUES:
            yield from (VALUES[name], str(value))
        elif name in SWITCHES:
            yield f"--{SWITCHES[name]}" if value else f"--no-{SWITCHES[name]}"
        elif name == "speculative_config":
            yield from ("--speculative-config", json.dumps(value))
        else:
            assert (name, value) == ("disable_hybrid_kv_cache_manager", True)
            yield "--disable-hybrid-kv-cache-manager"


@pytest.mark.parametrize("row", tuple(rows()))
def test_the_flags_of_vllm_give_its_plan(
    row: Mapping[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LIVE["configs"][row["config"]]))
    engine = ("--engine", "vllm", "--engine-version", "0.32.0", "-o", "json")

    assert main(["plan", "--model", str(tmp_path), *engine, *options(row["args"])]) == 0

    said, wanted = json.loads(capsys.readouterr().out), row["result"]
    assert (said["blocks"], said["loggedTokens"], said["concurrency"]) == (
        wanted["num_blocks"],
        wanted["kv_cache_size_tokens"],
        pytest.approx(wanted["max_concurrency"]),
    )
