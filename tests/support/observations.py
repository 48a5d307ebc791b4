"""Public start-up logs as inputs of the planner: what each row of observations.json was started with, and what it said.

The rules here read the rows' own words ("auto(bf16)", "0.19-ish (2026-05-19)", "max_num_batched_tokens 4096"); no row
has a number of its own. A row that names no version but a date is taken for the release of that time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from kvquota_api.memory import llamacpp, sglang, tensorrt, vllm
from kvquota_api.memory.cache_plan import CachePlan
from kvquota_api.memory.errors import PlanError
from kvquota_api.memory.inputs import EngineInputs, EngineName, Platform
from kvquota_api.memory.models.layers import ModelShape, StateCache
from kvquota_api.memory.models.reading import read_model
from kvquota_api.memory.presets import load_preset

DATA: Final = Path(__file__).parent.parent / "data" / "memory"
GIB: Final = 2**30
MIB: Final = 2**20
TOLERANCE: Final = 0.005  # of a figure, beside the rounding of what was logged
HALF_CENT: Final = 0.005  # half of the last digit of a figure with two decimals

ENGINES: Final[Mapping[str, EngineName]] = {
    "vllm": "vLLM",
    "vllm fork (GMK)": "vLLM",
    "sglang": "SGLang",
    "llama.cpp": "LlamaCpp",
    "ik_llama.cpp": "LlamaCpp",
    "tensorrt-llm": "TensorRTLLM",
}
PLANNERS: Final = {
    "vLLM": vllm.plan_cache,
    "SGLang": sglang.plan_cache,
    "LlamaCpp": llamacpp.plan_cache,
    "TensorRTLLM": tensorrt.plan_cache,
}
# The platform with the defaults of the row's card; those of workstation and AMD cards follow their memory.
PLATFORMS: Final[tuple[tuple[str, Platform], ...]] = (
    (r"B200|B300", "cuda-sm100"),
    (r"H100|H200|H20\b|GH200|GB10|RTX PRO 6000|ROCm", "cuda-sm90"),
    (r"A100|3090|4090|5090|T4|L4|iGPU|\d\d ?GB GPU", "cuda-sm80"),
)

# The release of vLLM from a time on, for rows that say only when they were made.
VLLM_RELEASES: Final = (("2025", "0.10.1"), ("2026", "0.19.0"), ("2026-05-20", "0.20.0"), ("2026-06", "0.21.0"))


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a log: what it is of, and the least and the most that was meant by what was printed."""

    name: str
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """A figure beside the prediction, which is a range where the bytes were logged with two decimals."""

    figure: Figure
    least: float
    most: float

    @property
    def right(self) -> bool:
        """Whether the two ranges touch, within TOLERANCE."""
        return self.least * (1 - TOLERANCE) <= self.figure.most and self.most * (1 + TOLERANCE) >= self.figure.least

    def __str__(self) -> str:
        logged, planned = self.figure, self
        return f"{logged.name}: planned {planned.least:g}..{planned.most:g}, logged {logged.least:g}..{logged.most:g}"


@dataclass(frozen=True, slots=True)
class Observation:
    """One row. `config`: of its model, None where none is known."""

    row: Mapping[str, Any]
    config: Mapping[str, Any] | None

    @property
    def shape(self) -> ModelShape:
        """The model. PlanError where it cannot be read."""
        assert self.config is not None, f"{self.id} has no model"
        return read_model(self.config)

    @property
    def id(self) -> str:
        return str(self.row["id"])

    @property
    def inferred(self) -> bool:
        """A fitted choice is in the row: it shows nothing."""
        return bool(self.row["inferred"])

    @property
    def engine(self) -> EngineName:
        return ENGINES[self.row["engine"]]


@cache
def observations() -> tuple[Observation, ...]:
    """All rows, in the file's order."""
    rows = json.loads((DATA / "observations.json").read_text())
    return tuple(Observation(row, _config(row)) for row in rows)


@cache
def _observed_models() -> Mapping[str, Any]:
    models: Mapping[str, Any] = json.loads((DATA / "observed_models.json").read_text())
    return models


def _config(row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The preset that the row's model has the caches of, or a config that no preset has."""
    models = _observed_models()
    named = models["models"].get(row["model"])
    if named is None:
        return None
    return load_preset(named["preset"]) if "preset" in named else models["configs"][named["config"]]


def inputs_of(observation: Observation) -> EngineInputs:
    """The flags of the row."""
    row, engine = observation.row, observation.engine
    common = EngineInputs(
        engine=engine,
        version=_version(row),
        platform=_platform(row["gpu"] or ""),
        tensor=row["tp"] or _noted(row, r"\bTP(\d+)") or 1,
        pipeline=row["pp"] or 1,
        decode_context=row.get("dcp", 1),
        kv_dtype=_kv_dtype(row["kv_dtype"]),
        dtype=row["dtype"] if row["dtype"] in ("float16", "bfloat16") else "auto",
        block_tokens=_block(observation),
        max_model_len=row["max_model_len"],
        max_num_batched_tokens=row.get("mnbt") or _noted(row, r"(?:max_num_batched_tokens|encoder budget) (\d+)"),
        max_num_seqs=_noted(row, r"max_num_seqs (\d+)") or row.get("mamba_slots"),
        prefix_caching=_prefix_caching(row),
        draft_layers=_noted(row, r"MTP draft layer=(\d+)") or 0,
        slots=_noted(row, r"(\d+)/\d+ seqs") or _noted(row, r": (\d+) slots") or 1,
        hybrid_manager=row["engine"] != "ik_llama.cpp",
        latent="v_mib" not in row,  # a latent has no V: its file was made without the tensors for one
    )
    return replace(common, **_speculation(row))


def _prefix_caching(row: Mapping[str, Any]) -> bool | None:
    """On where the note says so; off where SGLang was given the slots of its states, which it takes only then."""
    if "prefix caching on" in row["note"]:
        return True
    return False if "mamba_slots" in row else None


def _speculation(row: Mapping[str, Any]) -> dict[str, Any]:
    found = re.search(r"MTP n=(\d+)", row["model"])
    if found is None:
        return {}
    tokens = int(found.group(1))
    return {"speculative_tokens": tokens, "speculative": {"method": "mtp", "num_speculative_tokens": tokens}}


def _version(row: Mapping[str, Any]) -> str | None:
    """What the row says, for vLLM the release of that time; ik_llama.cpp has no builds of llama.cpp."""
    text: str = row["version"]
    if not row["engine"].startswith("vllm"):
        return None if row["engine"] == "ik_llama.cpp" else text
    release = re.match(r"\d+\.\d+[.\w]*", text)
    if release is not None and not release.group().startswith("0.1."):
        return release.group().replace(".x", ".0").removesuffix(".")
    date = re.search(r"\d{4}(-\d\d)*", text)
    if date is None:
        return None
    return next((name for since, name in reversed(VLLM_RELEASES) if date.group() >= since), None)


def _platform(gpu: str) -> Platform:
    return next((platform for pattern, platform in PLATFORMS if re.search(pattern, gpu)), "cuda-sm90")


def _kv_dtype(text: str | None) -> str:
    """The first word, or the packed form that the log names behind it; "auto" where the row does not know."""
    packed = re.search(r"\((\w+_ds_mla)\)", text or "")
    word = packed.group(1) if packed is not None else re.sub(r"\W.*", "", text or "")
    return word or "auto"


def _block(observation: Observation) -> int | None:
    """The row's block where it is a flag or a backend's; not where the engine computed it from recurrent state."""
    computed = any(isinstance(kept, StateCache) for layer in observation.shape.layers for kept in layer)
    return None if computed else observation.row.get("block_size")


def _noted(row: Mapping[str, Any], pattern: str) -> int | None:
    found = re.search(pattern, row["note"])
    return None if found is None else int(found.group(1))


def budget_of(observation: Observation) -> tuple[int, int] | None:
    """The least and the most bytes of the KV cache that the logged GiB mean; None where none are logged."""
    row = observation.row
    parts = [row[name] for name in ("k_gib", "v_gib", "swa_k_gib", "swa_v_gib", "ssm_gib") if row.get(name)]
    if row.get("avail_kv_gib"):
        parts = [row["avail_kv_gib"]]
    elif row.get("kv_total_gib"):
        parts = [row["kv_total_gib"]]
    if not parts:
        return None
    share = 0.9 if observation.engine == "TensorRTLLM" else 1.0
    error = HALF_CENT * len(parts)
    return int((sum(parts) - error) * share * GIB), int((sum(parts) + error) * share * GIB)


def plans_of(observation: Observation) -> tuple[CachePlan, CachePlan]:
    """The plans for the least and the most bytes; what llama.cpp needs where it sizes its cache itself. PlanError."""
    inputs, planner = inputs_of(observation), PLANNERS[observation.engine]
    if observation.engine == "LlamaCpp":
        plan = planner(observation.shape, inputs, 0)
        return plan, plan
    budget = budget_of(observation)
    if budget is None:
        return _plans_of_size(observation)
    return planner(observation.shape, inputs, budget[0]), planner(observation.shape, inputs, budget[1])


def _plans_of_size(observation: Observation) -> tuple[CachePlan, CachePlan]:
    """Where no bytes were logged: the plans around the logged size, so that the other figures can be compared."""
    shape, inputs, size = observation.shape, inputs_of(observation), observation.row["kv_tokens"]
    planner = PLANNERS[observation.engine]

    def logged(kv_bytes: int) -> int:
        return planner(shape, inputs, kv_bytes).logged_tokens or 0

    least, most = _first(logged, size), _first(logged, size + 1) - 1
    return planner(shape, inputs, least), planner(shape, inputs, most)


def _first(logged: Any, size: int) -> int:
    """The least bytes with which at least that size is logged."""
    low, high = 0, 1 << 42
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if logged(middle) >= size else (middle + 1, high)
    return low


def figures_of(observation: Observation) -> Iterator[tuple[Figure, str]]:
    """The figures that the log printed, each with the field of the plan that it is compared with."""
    row = observation.row
    if row.get("gpu_blocks"):
        yield Figure("blocks", row["gpu_blocks"], row["gpu_blocks"]), "blocks"
    if row.get("kv_tokens"):
        yield Figure("tokens", row["kv_tokens"], row["kv_tokens"]), "logged_tokens"
    if row.get("concurrency"):
        value = row["concurrency"]
        yield Figure("concurrency", value - HALF_CENT, value + HALF_CENT), "concurrency"
    if row.get("kv_mib"):
        size = row["kv_mib"] + row.get("swa_mib", 0)
        yield Figure("bytes", (size - 2 * HALF_CENT) * MIB, (size + 2 * HALF_CENT) * MIB), "kv_bytes"


def outcomes_of(observation: Observation) -> tuple[Outcome, ...]:
    """Every figure of the row beside its prediction. PlanError where the row cannot be planned."""
    least, most = plans_of(observation)
    return tuple(
        Outcome(figure, float(getattr(least, field) or 0), float(getattr(most, field) or 0))
        for figure, field in figures_of(observation)
    )


def report_line(observation: Observation) -> str:
    """One row of a table: the id, the verdict, and the figures that differ."""
    if observation.config is None:
        return f"| {observation.id} | left out | no config |"
    try:
        outcomes = outcomes_of(observation)
    except PlanError as refusal:
        return f"| {observation.id} | refused | {refusal} |"
    wrong = [str(outcome) for outcome in outcomes if not outcome.right]
    return f"| {observation.id} | {'differs' if wrong else 'right'} | {'; '.join(wrong)} |"
