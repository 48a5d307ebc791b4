"""What processes and the machine spent, from /proc."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICK_SECONDS: Final = 1 / os.sysconf("SC_CLK_TCK")
KIB_PER_MIB: Final = 1024


def cpu_seconds(pid: int) -> float:
    """User and system time of one process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_SECONDS


def busy_seconds() -> float:
    """All that the processors of this machine did, whoever asked for it; what a hypervisor took is not in it."""
    fields = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    user, nice, system, _, _, irq, softirq = fields[:7]
    return (user + nice + system + irq + softirq) * TICK_SECONDS


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident memory of one process: now, and at its peak."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    now, peak = (int(lines[name].split()[0]) / KIB_PER_MIB for name in ("VmRSS", "VmHWM"))
    return now, peak


@dataclass(frozen=True, slots=True)
class Reading:
    """CPU seconds by the name of a process, and of the machine, at a moment."""

    at: float
    processes: Mapping[str, float]
    machine: float


def read(pids: Mapping[str, int], now: float) -> Reading:
    return Reading(now, {name: cpu_seconds(pid) for name, pid in pids.items()}, busy_seconds())


def cores(before: Reading, after: Reading) -> dict[str, float]:
    """Cores that each process used between two readings, and those of everybody else as `strangers`."""
    seconds = after.at - before.at
    used = {name: round((spent - before.processes[name]) / seconds, 3) for name, spent in after.processes.items()}
    others = (after.machine - before.machine) / seconds - sum(used.values())
    return {**used, "strangers": round(max(0.0, others), 3)}


def machine() -> dict[str, object]:
    """This machine, in words and numbers."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
    }
