"""docs/accounting.md and its tests name the same rules."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "accounting.md"
OF_THE_PAGE = "unit/test_accounting_*.py"  # every test in these carries a rule
ALSO = ("unit/test_ledger_worked_example.py", "properties/test_ledger_guarantees.py")
PAGE_TEST = Path(__file__).name

_RULE = re.compile(r"^(?:\* )?\*\*(?P<name>[a-z][a-z0-9-]*)\*\*(?P<later> \*\(not yet\)\*)?:", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """Names of the rules, by whether they are in force."""

    in_force: tuple[str, ...]
    not_yet: tuple[str, ...]


def read(text: str) -> Page:
    found = [(each["name"].replace("-", "_"), bool(each["later"])) for each in _RULE.finditer(text)]
    return Page(tuple(name for name, later in found if not later), tuple(name for name, later in found if later))


def page() -> Page:
    return read(PAGE.read_text(encoding="utf-8"))


def named_in(text: str) -> list[str]:
    """What the tests of a file carry: test_hard__what_waits carries hard."""
    names = (each.name for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef))
    return [name.removeprefix("test_").partition("__")[0] for name in names if name.startswith("test_")]


def files(*patterns: str) -> Iterator[Path]:
    for pattern in patterns:
        yield from (each for each in sorted(TESTS.glob(pattern)) if each.name != PAGE_TEST)


def carried(*patterns: str) -> set[str]:
    return {name for each in files(*patterns) for name in named_in(each.read_text(encoding="utf-8"))}


def test_every_rule_in_force_has_a_test_of_its_name() -> None:
    assert sorted(set(page().in_force) - carried(OF_THE_PAGE, *ALSO)) == []


def test_a_rule_that_has_a_test_is_not_marked_as_not_yet() -> None:
    assert sorted(set(page().not_yet) & carried(OF_THE_PAGE, *ALSO)) == []


def test_every_test_of_the_page_carries_one_of_its_rules() -> None:
    assert sorted(carried(OF_THE_PAGE) - set(page().in_force)) == []


def test_no_name_is_given_twice() -> None:
    names = Counter((*page().in_force, *page().not_yet))
    assert [name for name, times in names.items() if times > 1] == []


def test_every_bullet_of_the_page_is_a_rule_with_a_name() -> None:
    bullets = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("* ")]
    assert [line for line in bullets if _RULE.match(line) is None] == []
    assert len(page().in_force) > 50


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("* **hard**: x", Page(("hard",), ()), id="a rule"),
        pytest.param("* **over-soft** *(not yet)*: x", Page((), ("over_soft",)), id="a rule that is not in force"),
        pytest.param("**worked-example**: x", Page(("worked_example",), ()), id="a rule without a bullet"),
        pytest.param("* hard: x **protected** y", Page((), ()), id="a word in bold is none"),
    ],
)
def test_a_page_is_read(text: str, expected: Page) -> None:
    assert read(text) == expected


def test_names_are_read() -> None:
    assert named_in("def test_hard__what(): ...\ndef test_hard(): ...\ndef helper(): ...") == ["hard", "hard"]
