"""Prints a plan in the form that was asked for, alone or with what a log says beside it."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvquota_api.amounts import Tokens
from kvquota_api.memory.planning import CardPlan
from kvquota_cli.planning.answer import answer
from kvquota_cli.planning.asking import asked_fields
from kvquota_cli.planning.drawing import Line, drawn
from kvquota_cli.planning.report import report
from kvquota_cli.planning.showing import glyphs_of_output, show
from kvquota_cli.planning.sources import ModelSource
from kvquota_cli.wrapping import terminal_columns


@dataclass(frozen=True, slots=True)
class Beside:
    """What stands beside the plan: `lines` by the terminal's columns, and `fields` of the JSON object."""

    lines: Callable[[int], Sequence[Line]]
    fields: Mapping[str, Any]


def print_plan(
    arguments: argparse.Namespace, source: ModelSource, plan: CardPlan, beside: Beside | None = None
) -> None:
    """Table, JSON or ModelPool on standard output; of a ModelPool the warnings on standard error. Raises CliError."""
    said = report(source.name, plan, _contexts(arguments, source), asked_fields(arguments))
    if arguments.output == "yaml":
        print(importlib.import_module("kvquota_cli.planning.pool_yaml").pool_yaml(arguments, source, plan), end="")
        for warning in said.warnings:
            print(f"kvquota: warning: {warning}", file=sys.stderr)
        return
    if arguments.output == "json":
        print(json.dumps({**answer(said), **(beside.fields if beside else {})}, indent=2))
        return
    columns = terminal_columns()
    more = ((), *beside.lines(columns)) if beside else ()
    show((*drawn(said, glyphs_of_output(), columns), *more))


def _contexts(arguments: argparse.Namespace, source: ModelSource) -> Sequence[Tokens] | None:
    """The lengths to count: those asked for, else those of the pool's workload, else the usual ones."""
    if arguments.context is not None or source.pool is None:
        asked: Sequence[Tokens] | None = arguments.context
        return asked
    return tuple(Tokens(each.context_tokens) for each in source.pool.spec.workload.context_mix) or None
