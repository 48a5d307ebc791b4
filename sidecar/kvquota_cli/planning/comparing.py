"""`kvquota plan --from-log`: a plan with what an engine's start-up log says, and where the two differ.

What a flag says wins over the log, and the log over the ModelPool: the question is why *this* engine came up so.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, Final

from kvquota_api.amounts import Bytes, format_bytes
from kvquota_api.memory.errors import PlanError
from kvquota_api.memory.models.layers import ModelShape
from kvquota_api.memory.models.reading import read_model
from kvquota_api.memory.planning import Card, CardPlan, KvBudget, KvBytes, PlanRequest, plan_card
from kvquota_api.memory.presets import load_preset, preset_names
from kvquota_api.memory.startup_log import (
    Difference,
    LogFacts,
    PlannedMemory,
    Size,
    Subject,
    card_memory,
    compare,
    facts_to_inputs,
    kv_memory,
    memory_fraction,
    model_name,
    parse_log,
)
from kvquota_api.memory.startup_log.facts import Refusal, RefusalKind
from kvquota_cli.errors import CliError, ExitCode
from kvquota_cli.planning.asking import plan_request
from kvquota_cli.planning.drawing import Line, Segment
from kvquota_cli.planning.flags import ENGINES
from kvquota_cli.planning.printing import Beside, print_plan
from kvquota_cli.planning.showing import show
from kvquota_cli.planning.sources import ModelSource, read_text
from kvquota_cli.wrapping import terminal_columns, wrapped

MAX_LOG_BYTES: Final = 256 * 2**20  # a start-up log is a few hundred KiB; a day's log of requests is still read

_TUNED: Final = ("-instruct", "-it", "-chat", "-base", "-hf")  # the same shape under another name
_NAMES: Final = {name: option for option, name in ENGINES.items()}
_SIZES: Final = frozenset({"kvBytes", "minBytes", "card", "weights", "activation", "nonTorch", "graphs"})
_WORDS: Final = {
    "Equal": "same",
    "WithinRounding": "same, as it was rounded",
    "Different": "different",
    "TakenFromLog": "taken from the log",
}
_REFUSED: Final[Mapping[RefusalKind, str]] = {
    "LengthAboveCapacity": "its longest request is longer than its KV cache",
    "LengthAboveMemory": "its longest request needs more KV cache than there is",
    "NoMemoryForCache": "weights and activation leave nothing for its KV cache",
    "StatesExhausted": "its KV cache has no room for the state of as many sequences as it may run",
    "CardTaken": "other processes hold too much of the card",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The log `file`, what it says, the plan made with it, and their figures side by side."""

    facts: LogFacts
    plan: CardPlan
    differences: tuple[Difference, ...]

    @property
    def compares(self) -> bool:
        """Whether there is a figure that is planned by a rule, and not from the log."""
        return any(each.verdict != "TakenFromLog" and not each.estimated for each in self.differences)

    @property
    def agrees(self) -> bool:
        """Whether no figure differs by more than its rounding, but for those that the plan estimates only. What the
        plan has from the log itself neither agrees nor differs."""
        return all(each.verdict != "Different" or each.estimated for each in self.differences)


def run(arguments: argparse.Namespace, source: ModelSource, base: PlanRequest) -> ExitCode:
    """Print plan and differences. PROBLEM when a figure differs or none is compared. Raises CliError, PlanError."""
    facts = read_log(arguments)
    try:
        found = compared(facts, plan_request(arguments, with_log(facts, base)), _taken(arguments, facts))
    except (CliError, PlanError):
        _show_failures(arguments, facts)
        raise
    print_plan(arguments, source, found.plan, Beside(partial(lines_of, found), {"log": _as_json(found)}))
    return ExitCode.OK if found.compares and found.agrees else ExitCode.PROBLEM


def _show_failures(arguments: argparse.Namespace, facts: LogFacts) -> None:
    """Why the engine did not start is said even where nothing can be planned, in what the output can hold."""
    lines = _failures(facts, terminal_columns())
    if arguments.output == "json":
        print(json.dumps({"log": _failures_as_json(facts)}, indent=2))
    elif lines and arguments.output == "yaml":
        print("\n".join(f"# {segment.text.strip()}" for line in lines for segment in line))
    elif lines:
        show(lines)


def read_log(arguments: argparse.Namespace) -> LogFacts:
    """What the log says. Raises CliError where it is of no engine that is known."""
    facts = parse_log(read_text(arguments.from_log, "--from-log", MAX_LOG_BYTES))
    if facts.engine is None:
        known = ", ".join(ENGINES)
        raise CliError(
            f"--from-log {arguments.from_log}: no line of it is of an engine's start ({known}): name its start-up log",
            ExitCode.NO_PLAN,
        )
    if arguments.engine is not None and ENGINES[arguments.engine] != facts.engine:
        raise CliError(f"--engine {arguments.engine}: the log is of {_NAMES[facts.engine]}: leave --engine out")
    return facts


def preset_of_log(arguments: argparse.Namespace) -> str:
    """The preset whose name the log has, whatever its publisher calls the tuned variant. Raises CliError."""
    facts = read_log(arguments)
    called = model_name(facts)
    preset = None if called is None else _preset(called)
    if preset is not None:
        return preset
    _show_failures(arguments, facts)
    if called is None:
        raise CliError("--from-log needs --model too: the log does not say which model it is of; give its config.json")
    raise CliError(f"--from-log needs --model too: give the config.json of the model that the log calls {called}")


def _preset(called: str) -> str | None:
    name, names = called.rstrip("/").rpartition("/")[2].lower(), preset_names()
    return next((name.removesuffix(each) for each in ("", *_TUNED) if name.removesuffix(each) in names), None)


def with_log(facts: LogFacts, base: PlanRequest) -> PlanRequest:
    """The request with what the log says in place of what was a default or the ModelPool's. Not the size of llama.cpp's
    cache: it is what the flags need, so that the plan has to come to it."""
    said = facts_to_inputs(facts)
    platform = said.pop("platform", base.platform)
    base = replace(base, inputs=replace(base.inputs, **said), platform=platform, assumptions=())
    budget, total, part = _budget(facts), card_memory(facts), memory_fraction(facts)
    card = base.card if total is None else replace(base.card or Card(Bytes(total.bytes)), memory=Bytes(total.bytes))
    if budget is not None:
        return replace(base, card=card, kv=KvBytes(Bytes(budget.bytes)))
    return replace(base, card=card, kv=base.kv if part is None else KvBudget(part.value))


def _budget(facts: LogFacts) -> Size | None:
    """What the engine has for its cache; where it refused to start, what its refusal says. None where nothing is left
    for it, and of llama.cpp, which has no budget."""
    if facts.engine == "LlamaCpp":
        return None
    refused = [each.available for each in facts.refusals if each.kind == "LengthAboveMemory" and each.available]
    said = kv_memory(facts) or next(iter(refused), None)
    return said if said is not None and said.bytes > 0 else None


def _taken(arguments: argparse.Namespace, facts: LogFacts) -> frozenset[Subject]:
    """What the plan has from the log, as no option says it."""
    sized = arguments.kv_memory is not None or arguments.gpu_memory_utilization is not None
    printed = any(rank.block_tokens is not None for rank in facts.ranks)
    taken: tuple[tuple[Subject, bool], ...] = (
        ("kvBytes", _budget(facts) is not None and not sized),
        ("card", arguments.gpu_memory is None and card_memory(facts) is not None),
        ("maxModelLen", arguments.max_model_len is None and "max_model_len" in facts_to_inputs(facts)),
        ("blockTokens", arguments.block_size is None and printed),
    )
    return frozenset(subject for subject, is_taken in taken if is_taken)


def compared(facts: LogFacts, request: PlanRequest, taken: frozenset[Subject]) -> Comparison:
    """The plan of the request beside the log, of which it has `taken`. Raises PlanError."""
    plan = plan_card(request)
    if plan.cache is None:
        return Comparison(facts, plan, ())
    planned = replace(_planned(plan), taken=taken)
    found = compare(facts, plan.cache, plan.inputs, planned, plan.model)
    other = _other_model(facts, plan.model)
    return Comparison(facts, plan, found if other is None else tuple(_because(other, each) for each in found))


def _other_model(facts: LogFacts, planned: ModelShape) -> str | None:
    """Why nothing can agree: the log names a preset whose layers are not the plan's."""
    called = model_name(facts)
    preset = None if called is None else _preset(called)
    if preset is None or read_model(load_preset(preset)).layers == planned.layers:
        return None
    return f"the log is of another model, {called}: plan with --model {preset}"


def _because(cause: str, each: Difference) -> Difference:
    return replace(each, cause=cause) if each.verdict == "Different" and not each.estimated else each


def _planned(plan: CardPlan) -> PlannedMemory:
    kv, parts = plan.request.kv, plan.partition
    size, part = (kv.size if isinstance(kv, KvBytes) else None), (kv.part if isinstance(kv, KvBudget) else None)
    if parts is None:
        return PlannedMemory(kv=size, part=part)
    return PlannedMemory(card=parts.card, kv=size, weights=parts.weights, activation=parts.activation, part=part)


def lines_of(found: Comparison, columns: int) -> tuple[Line, ...]:
    """The comparison as a person reads it."""
    facts = found.facts
    lines = [*_wrapped(_heading(facts), columns, "bold")]
    for each in found.differences:
        wrong = each.verdict == "Different" and not each.estimated
        lines.extend(_wrapped(_sentence(each, model_name(facts)), columns, "red" if wrong else ""))
    if not found.compares:
        lines.extend(
            _wrapped("  The log has no figure that the plan has by a rule: nothing was compared.", columns, "")
        )
    return (*lines, *_failures(facts, columns))


def _failures(facts: LogFacts, columns: int) -> tuple[Line, ...]:
    """Why the engine did not start, or ended."""
    refused = [f"  line {each.line}:  the engine refused to start: {_refused(each)}" for each in facts.refusals]
    ended = [
        f"  line {each.line}:  the engine ran out of memory for {format_bytes(each.tried.bytes)}"
        for each in facts.out_of_memory
    ]
    return tuple(line for sentence in (*refused, *ended) for line in _wrapped(sentence, columns, "red"))


def _refused(refusal: Refusal) -> str:
    """The figures of a refusal, as far as it has them."""
    figures = (
        ("{:,} tokens at most in a request", refusal.length),
        ("{:,} fit", refusal.capacity),
        ("{:,} sequences", refusal.sequences),
        ("{} needed", refusal.needed and format_bytes(refusal.needed.bytes)),
        ("{} available", refusal.available and format_bytes(refusal.available.bytes)),
        ("{:,} tokens would fit", refusal.estimated_length),
    )
    said = ", ".join(words.format(value) for words, value in figures if value is not None)
    why = _REFUSED[refusal.kind]
    return f"{why} ({said})" if said else why


def _heading(facts: LogFacts) -> str:
    version = "" if facts.version is None else f" {facts.version.value}"
    starts = f", the last of {facts.starts} starts" if facts.starts > 1 else ""
    called = model_name(facts)
    model = "" if called is None else f", model {called}"
    return f"Beside the log of {_NAMES[facts.engine or 'vLLM']}{version}{starts}{model}:"


def _sentence(each: Difference, model: str | None) -> str:
    engine, plan = _figure(each, each.engine), _figure(each, each.plan)
    relative = (
        "" if each.relative is None or each.verdict in ("Equal", "TakenFromLog") else f" ({float(each.relative):+.2%})"
    )
    cause = "" if each.cause is None else f": {each.cause}"
    unknown = ""
    if each.verdict == "Different" and each.cause is None:
        asked = "" if model is None else f"; is the plan of its model, {model}?"
        unknown = ": an estimate" if each.estimated else f": the log does not tell why{asked}"
    return (
        f"  line {each.line}:  {each.subject}: engine {engine}, plan {plan}, {_WORDS[each.verdict]}{relative}"
        f"{cause}{unknown}"
    )


def _figure(each: Difference, value: Fraction) -> str:
    if each.subject in _SIZES:
        return format_bytes(int(value))
    return f"{float(value):.2f}" if each.subject == "concurrency" else f"{int(value):,}"


def _wrapped(text: str, columns: int, colour: str) -> tuple[Line, ...]:
    return tuple((Segment(line, colour),) for line in wrapped(text, columns))


def _as_json(found: Comparison) -> dict[str, Any]:
    facts = found.facts
    return {
        "engine": None if facts.engine is None else _NAMES[facts.engine],
        "version": None if facts.version is None else facts.version.value,
        "starts": facts.starts,
        "agrees": found.agrees if found.compares else None,
        "differences": [_difference(each) for each in found.differences],
        **_failures_as_json(facts),
    }


def _failures_as_json(facts: LogFacts) -> dict[str, Any]:
    return {
        "refusals": [{"kind": each.kind, "figures": _refused(each), "line": each.line} for each in facts.refusals],
        "outOfMemory": [{"line": each.line, "triedBytes": each.tried.bytes} for each in facts.out_of_memory],
    }


def _difference(each: Difference) -> dict[str, Any]:
    exact = float if each.subject == "concurrency" else int
    return {
        "subject": each.subject,
        "engine": exact(each.engine),
        "plan": exact(each.plan),
        "rounding": float(each.rounding),
        "relative": None if each.relative is None else float(each.relative),
        "verdict": each.verdict,
        "cause": each.cause,
        "line": each.line,
    }
