"""The log lines of the operator: one JSON object each, with names that stay; and text for people."""

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from kvquota_operator import logs
from kvquota_operator.logs import JsonLines, told


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger and what else `configure` changes, put back afterwards."""
    root, hook = logging.getLogger(), sys.excepthook
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:], sys.excepthook = handlers, hook
    root.setLevel(level)


def line(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    [written] = capsys.readouterr().err.splitlines()
    found: dict[str, object] = json.loads(written)
    assert isinstance(found.pop("at"), float)
    return found


def test_a_line_has_the_event_its_fields_and_a_sentence(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("json")
    logging.getLogger("kvquota_operator.x").info("%d pods", 3, extra=told("counted", pods=3, pool=None, kind="Sync"))
    assert line(capsys) == {"level": "info", "event": "counted", "pods": 3, "kind": "Sync", "message": "3 pods"}


def test_a_library_says_who_it_is(root: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    logging.getLogger("aiohttp.client").warning("line one\nline two")
    assert line(capsys) == {
        "level": "warning",
        "event": "library",
        "logger": "aiohttp.client",
        "message": "line one\nline two",
    }


def test_a_bug_that_ends_the_process_is_one_line_too(root: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    try:
        raise ZeroDivisionError("x")
    except ZeroDivisionError as error:
        sys.excepthook(ZeroDivisionError, error, error.__traceback__)
    found = line(capsys)
    trace = str(found.pop("traceback"))
    assert found == {"level": "critical", "event": "died", "message": "ended by a bug: ZeroDivisionError"}
    assert trace.startswith("Traceback (most recent call last):\n")
    assert trace.endswith("\nZeroDivisionError: x")


def test_text_is_for_people(root: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("text")
    logging.getLogger("kvquota_operator").info("stopped", extra=told("stopped"))
    assert capsys.readouterr().err.endswith(" INFO kvquota_operator: stopped\n")


def test_what_json_has_no_word_for_is_written_as_text() -> None:
    record = logging.makeLogRecord({"msg": "x", **told("y", path=object())})  # type: ignore[arg-type]
    assert json.loads(JsonLines().format(record))["path"].startswith("<object object")
