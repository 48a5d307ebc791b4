"""The maps of what may go wrong: every case is somebody's, and every test that one names exists."""

import ast
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
MAPS = [TESTS / "data" / f"{name}_cases.toml" for name in ("reliability", "operator")]


@dataclass(frozen=True, slots=True)
class Case:
    """What may go wrong: the tests that show that it does not, or who else sees to it."""

    id: str
    title: str
    tests: tuple[str, ...] = ()
    elsewhere: str = ""


def read(text: str) -> list[Case]:
    """The cases of a map."""
    rows: list[dict[str, Any]] = tomllib.loads(text)["cases"]
    return [Case(**row | {"tests": tuple(row.get("tests", ()))}) for row in rows]


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def functions_of(file: str) -> frozenset[str]:
    """The tests that a file has; none where there is no such file."""
    path = TESTS / file
    if not path.is_file():
        return frozenset()
    functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, FUNCTIONS))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def faults(cases: list[Case]) -> list[str]:
    """What is wrong with a map, in words."""
    ids = Counter(case.id for case in cases)
    found = [f"{name} is there {count} times" for name, count in ids.items() if count > 1]
    for case in cases:
        if not (case.id and case.title):
            found.append(f"{case.id or case.title}: has no id or no title")
        if bool(case.tests) == bool(case.elsewhere):
            found.append(f"{case.id}: has either tests or somebody else who sees to it")
        found += [f"{case.id}: there is no {test}" for test in case.tests if not exists(test)]
    return found


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    return name in functions_of(file)


def test_every_case_is_somebodys_and_every_test_that_it_names_exists() -> None:
    cases = [read(path.read_text()) for path in MAPS]
    assert faults([case for each in cases for case in each]) == []
    sidecar, operator = (len([case for case in each if case.tests]) for each in cases)
    assert (sidecar > 60, operator > 20) == (True, True)


HERE = "unit/test_reliability_map.py::test_a_map_with_a_fault_is_found_out"
WRONG = {
    "a test that does not exist": (Case("a", "A.", (HERE + "_",)), f"a: there is no {HERE}_"),
    "a file that does not exist": (Case("a", "A.", ("unit/no.py::test_x",)), "a: there is no unit/no.py::test_x"),
    "nobody's case": (Case("a", "A."), "a: has either tests or somebody else who sees to it"),
    "a case of two": (Case("a", "A.", (HERE,), "B."), "a: has either tests or somebody else who sees to it"),
    "a case without a title": (Case("a", "", (HERE,)), "a: has no id or no title"),
}


@pytest.mark.parametrize(("case", "fault"), WRONG.values(), ids=WRONG)
def test_a_map_with_a_fault_is_found_out(case: Case, fault: str) -> None:
    assert faults([case]) == [fault]


def test_a_case_that_is_there_twice_is_found_out() -> None:
    assert faults([Case("a", "A.", (HERE,))] * 2) == ["a is there 2 times"]
