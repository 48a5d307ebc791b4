"""How the benchmark of the operator judges what it found, and which quotas hold over all pods."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "bench" / "operatorbench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the benchmark, which nobody else sees."""
    monkeypatch.syspath_prepend(str(BENCH))

    def load(name: str) -> Any:
        monkeypatch.delitem(sys.modules, name, raising=False)
        module = import_module(name)
        monkeypatch.delitem(sys.modules, name)
        return module

    return load


def found(aims: dict[str, float], *, strangers: float = 0.0, **changes: float | None) -> dict[str, Any]:
    """Figures that meet each aim exactly, but for those named."""
    windows = {window: {"cores": {"operator": 0.4, "strangers": strangers}} for window in ("steady", "idle")}
    return {**aims, **windows, **changes}


@pytest.mark.parametrize(
    ("changes", "judged"),
    [
        pytest.param({}, "", id="all are met"),
        pytest.param({"editOfAPoolQuotaInForceSeconds": None}, "", id="what was not measured is not missed"),
        pytest.param(
            {"cpuCores": 0.51, "rssMiB": 301.0},
            "MISSED: cpuCores is 0.51 (at most 0.5), rssMiB is 301.00 (at most 300)",
            id="every aim that is missed is named",
        ),
        pytest.param(
            {"cpuCores": 0.51, "strangers": 0.11},
            "hint only, as others took 0.11 of the cores: cpuCores is 0.51 (at most 0.5)",
            id="beside others it is a hint",
        ),
        pytest.param({"strangers": 2.0}, "", id="what is met beside others is met"),
    ],
)
def test_a_missed_aim_counts_where_nobody_else_was_at_work(bench: Any, changes: dict[str, Any], judged: str) -> None:
    figures = bench("figures")
    assert figures.judged(found(figures.AIMS, **changes)) == judged


@pytest.mark.parametrize(("percent", "numbers"), [(0, []), (20, [4, 9]), (50, [1, 3, 5, 7, 9]), (100, list(range(10)))])
def test_quotas_over_all_pods_are_spread_over_the_quotas(bench: Any, percent: int, numbers: list[int]) -> None:
    fleet = bench("workload").Fleet(20, 20, 2, percent)
    assert [each for each in range(10) if fleet.is_of_pool(each)] == numbers
    assert fleet.first_quota(0, of_pool=True) == next(iter(numbers), None)
    assert (fleet.first_quota(1, of_pool=False) is None) == (percent == 100)
