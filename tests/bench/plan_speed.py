"""How long a plan takes: `python tests/bench/plan_speed.py [NUMBER] [PRESET ...]`, or `all` for every preset.

Prints the median and the 95th percentile in milliseconds, of a plan in this process (as the operator makes it), and of
the whole program `kvquota plan` with its start. A plan is to take less than 50 ms.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from kvquota_api.amounts import Bytes
from kvquota_api.memory.advice import FLAGS, advise
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.planning import Card, KvBudget, KvBytes, PlanRequest, plan_card
from kvquota_api.memory.presets import load_preset, preset_names

MODELS = ("llama-3.1-8b", "gpt-oss-120b", "gemma-3-27b", "deepseek-v3.2", "qwen3-next-80b-a3b", "nemotron-h-56b")
PLANS = 50
STARTS = 10


def main() -> None:
    numbers = [each for each in sys.argv[1:] if each.isdigit()]
    named = [each for each in sys.argv[1:] if not each.isdigit()]
    plans = int(numbers[0]) if numbers else PLANS
    print(f"{'':44}  p50 ms  p95 ms")
    for model in preset_names() if named == ["all"] else named or MODELS:
        config = load_preset(model)
        inputs = EngineInputs("vLLM")
        by_bytes = PlanRequest(config, inputs, KvBytes(Bytes(20 * 2**30)))
        by_card = PlanRequest(config, inputs, KvBudget(), Card(Bytes(141 * 2**30)))
        report(f"{model}: KV cache", timed(partial(plan_card, by_bytes), plans))
        report(f"{model}: card", timed(partial(plan_card, by_card), plans))
        report(f"{model}: card with advice", timed(partial(advised, by_card), plans))
    report("kvquota plan, the whole program", timed(program, STARTS))


def advised(request: PlanRequest) -> object:
    return advise(plan_card(request), FLAGS)


def program() -> object:
    command = [sys.executable, "-m", "kvquota_cli", "plan", "--model", "llama-3.1-8b", "--kv-memory", "20GiB"]
    return subprocess.run(command, check=True, capture_output=True)


def timed(work: Callable[[], object], times: int) -> list[float]:
    """Milliseconds of each run, after one that is not counted."""
    work()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append((time.perf_counter() - start) * 1000)
    return sorted(taken)


def report(name: str, taken: list[float]) -> None:
    print(f"{name:44}  {statistics.median(taken):6.1f}  {taken[int(len(taken) * 0.95)]:6.1f}")


if __name__ == "__main__":
    main()
