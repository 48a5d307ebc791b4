"""How the time of reading a start-up log grows: `python tests/bench/log_speed.py`.

Prints, for texts that provoke every pattern of the reader, the CPU milliseconds of 200 kB and of 2 MB, and their ratio.
A linear reader has ratios around 10, a quadratic one around 100.
"""

from __future__ import annotations

import time

from kvquota_api.memory.startup_log import parse_log

HOSTILE = (
    "# GPU blocks: ",
    "KV cache size: ",
    "with config: a=1, ",
    "x) with config: tensor_parallel_size=1, ",
    "non-default args: {'speculative_config': {",
    "out of memory. Tried to allocate ",
    "(" * 40,
    "[0;" * 40 + "[0m",
    " " * 79 + "\n",
    "\n",
    "Maximum concurrency" + " " * 60,
    "Load weight end." + "type=" * 12,
    "n_ctx" + " " * 20,
    "(Worker pid=1 num_gpu_blocks: 1\n",
    "9" * 40 + " cells,",
    "w num_gpu_blocks: 7\n",
)


def main() -> None:
    print(f"{'':28}  200 kB    2 MB  ratio")
    for unit in HOSTILE:
        small, large = (milliseconds(unit * (size // len(unit) + 1)) for size in (200_000, 2_000_000))
        print(f"{unit[:26]!r:28} {small:7.1f} {large:7.1f} {large / small:6.1f}")


def milliseconds(text: str) -> float:
    """The least of two: the machine may be busy with something else."""
    taken = []
    for _ in range(2):
        begin = time.process_time()
        parse_log(text)
        taken.append((time.process_time() - begin) * 1000)
    return min(taken)


if __name__ == "__main__":
    main()
