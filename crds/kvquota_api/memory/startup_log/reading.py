"""What a start-up log says, out of its text.

Decides which lines belong to the last start, which process speaks in a line, and which of several figures counts. Pure.

Invariants:

1. No text makes it fail, and the time is linear in the length of the text.
2. Lines count from 1 and end with a line feed, as an editor counts them: a progress bar that returns to the start of
   its line stays on it.
3. The engine is the one with the most lines that only it prints; what other engines' rules found is dropped.
4. What a client wrote counts for nothing: engines that log requests quote prompts and stop words in them.

It does not know what the figures mean for a plan: that is `comparing`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kvquota_api.memory.inputs import EngineName
from kvquota_api.memory.startup_log import (
    configurations,
    llamacpp,
    out_of_memory,
    refusals,
    sglang,
    tensorrt,
    vllm,
)
from kvquota_api.memory.startup_log.facts import (
    CacheFacts,
    LogFacts,
    Notice,
    OutOfMemory,
    RankFacts,
    Refusal,
    Setting,
)
from kvquota_api.memory.startup_log.figures import Count, Ratio, Size
from kvquota_api.memory.startup_log.rules import (
    CONFIGURATION_WINDOW,
    LEAD,
    Device,
    Finding,
    Place,
    RankFact,
    RankPart,
    Rule,
    Version,
)

_RULES: Final = (
    *vllm.RULES,
    *sglang.RULES,
    *llamacpp.RULES,
    *tensorrt.RULES,
    *configurations.RULES,
    *refusals.RULES,
    *out_of_memory.RULES,
)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]|\[[0-9;]{1,16}m")  # also where the escape itself got lost
# How engines begin to quote a request or its answer: vLLM's request logger, SGLang's --log-requests.
_QUOTES: Final = ("Received request ", "Generated response ", "Receive: obj=", "Finish: obj=")
_QUOTED: Final = re.compile(rf"({'|'.join(map(re.escape, _QUOTES))})[^\n]*")
_REACH: Final = 4_096  # characters back to the start of a message: suggestions are printed in one line of about 1_000
_WRAPS: Final = 3  # lines back: a figure stands in the first lines of a wrapped message
_PREFIX: Final = 200  # characters at the start of a message in which its process is named
_PROCESS: Final = re.compile(r"\((\w{1,60})(?: (?:rank=)?(\w{1,12}))? pid=(\d{1,10})(?:, ip=[\w.:]{1,60})?\)")
_STAMPED: Final = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?((?: [A-Z]{2}\d{1,5}){1,6})\]")
_MPI: Final = re.compile(r"^\[\d{1,6},(\d{1,6})\]<std|\[(?:RANK|Rank) (\d{1,6})\]")
# How a line that is not the rest of a wrapped one begins: with a stamp, a process, a level, or the name of a container,
# an error or a function. The rest of a configuration may be indented, any other indented line is one of its own.
_NEW_MESSAGE: Final = re.compile(r"[\[({<\dA-Z]|[\w.\-]{1,80}(?:\s{1,20}\||:\s)")
_OWN_LINE: Final = re.compile(rf"\s|{_NEW_MESSAGE.pattern}")
_SHARED_NAMES: Final = ("VllmWorkerProcess", "RayWorkerWrapper", "RayWorkerVllm")  # all workers have the same

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Hit:
    at: int
    rule: Rule
    match: re.Match[str]


@dataclass(frozen=True, slots=True)
class _Said:
    """One matched line: what it says, by whom, and whether it begins a start."""

    rule: Rule
    rank: str | None
    findings: tuple[Finding, ...]


def parse_log(text: str) -> LogFacts:
    """The facts of a start-up log. Any text will do: what it does not say is None."""
    clean = _COLOUR.sub("", text) if "\x1b" in text or "[0m" in text else text
    if any(quote in clean for quote in _QUOTES):
        clean = _QUOTED.sub(r"\1", clean)
    said, starts = _last_start(list(_say(clean)))
    engine = _engine(said)
    findings = [found for each in said if each.rule.engine in (engine, None) for found in each.findings]
    return LogFacts(
        engine=engine,
        version=_last(found.word for found in findings if isinstance(found, Version)),
        starts=starts,
        device=_last(found.word for found in findings if isinstance(found, Device)),
        ranks=_ranks(findings),
        caches=tuple(found for found in findings if isinstance(found, CacheFacts)),
        settings=tuple(found for found in findings if isinstance(found, Setting)),
        notices=tuple(found for found in findings if isinstance(found, Notice)),
        refusals=_once(found for found in findings if isinstance(found, Refusal)),
        out_of_memory=tuple(found for found in findings if isinstance(found, OutOfMemory)),
    )


def _say(text: str) -> Iterator[_Said]:
    """What each matched line says, in the order of the text."""
    line, counted_to = 1, 0
    for hit in sorted(_hits(text), key=lambda each: each.at):
        line += text.count("\n", counted_to, hit.at)
        counted_to = hit.at
        start = _message_start(text, hit.at)
        prefix = text[start : min(hit.at, start + _PREFIX)]
        place = Place(line, _rank(prefix), text[max(start, hit.at - LEAD) : hit.at])
        findings = tuple(hit.rule.read(hit.match, place))
        if findings:
            yield _Said(hit.rule, place.rank, findings)


def _hits(text: str) -> Iterator[_Hit]:
    for rule in _RULES:
        at = text.find(rule.cue)
        while at >= 0:
            after = at + len(rule.cue)
            match = rule.pattern.match(text, after, _window_end(text, after, rule.window))
            if match is not None:
                yield _Hit(at, rule, match)
            at = text.find(rule.cue, after if match is None else max(after, match.end()))


def _window_end(text: str, start: int, window: int) -> int:
    """What is looked at ends with the window; of a configuration, where the next message begins."""
    limit = min(len(text), start + window)
    if window < CONFIGURATION_WINDOW:
        return limit
    end = text.find("\n", start, limit)
    while end >= 0 and not _NEW_MESSAGE.match(text, end + 1):
        end = text.find("\n", end + 1, limit)
    return limit if end < 0 else end


def _message_start(text: str, at: int) -> int:
    """Where the line begins in which `at` is, or the line that was wrapped into it."""
    floor = max(0, at - _REACH)
    start = max(text.rfind("\n", floor, at) + 1, floor)
    for _ in range(_WRAPS):
        if start == floor or (start < at and _OWN_LINE.match(text, start)):
            break
        start = max(text.rfind("\n", floor, start - 1) + 1, floor)
    return start


def _rank(prefix: str) -> str | None:
    """The process that a line names at its start, without its number where its name tells it from the others."""
    named = list(_PROCESS.finditer(prefix))
    if named:
        return _process(named[-1])
    stamped = _STAMPED.search(prefix)
    if stamped is not None:
        return stamped[1].strip()
    launched = _MPI.search(prefix)
    return None if launched is None else f"rank {launched[1] or launched[2]}"


def _process(match: re.Match[str]) -> str:
    if match[2] is not None:
        return f"{match[1]} {match[2]}"
    return f"{match[1]} {match[3]}" if match[1] in _SHARED_NAMES else match[1]


def _last_start(said: list[_Said]) -> tuple[list[_Said], int]:
    """What was said since the last start, and how often an engine started."""
    kind = min((each.rule.begins for each in said if each.rule.begins is not None), default=None)
    seen: set[tuple[str, str | None]] = set()
    begin, starts = 0, 1
    for index, each in enumerate(said):
        if kind is None or each.rule.begins != kind:
            continue
        line = (each.rule.cue, each.rank)
        if line in seen:
            begin, starts = index, starts + 1
            seen.clear()
        seen.add(line)
    return said[begin:], starts


def _engine(said: Iterable[_Said]) -> EngineName | None:
    lines = Counter(each.rule.engine for each in said if each.rule.engine is not None)
    return lines.most_common(1)[0][0] if lines else None


def _last(values: Iterable[T]) -> T | None:
    return next(reversed(tuple(values)), None)


def _once(found: Iterable[Refusal]) -> tuple[Refusal, ...]:
    """Each refusal where it was first printed: a traceback says it again, through every process that it passes."""
    first: dict[object, Refusal] = {}
    for each in found:
        first.setdefault((each.kind, each.length, each.sequences), each)
    return tuple(first.values())


def _ranks(findings: Iterable[Finding]) -> tuple[RankFacts, ...]:
    """The figures of each process. Of two of the same the more exact counts, then the later; parts add up. Of what was
    free before loading the first counts: drafters are loaded later."""
    ranks: dict[str | None, dict[str, Size | Count | Ratio]] = {}
    for found in findings:
        if isinstance(found, RankFact):
            figures = ranks.setdefault(found.rank, {})
            if found.name != "free" or found.name not in figures:
                figures[found.name] = _better(figures.get(found.name), found.value)
        elif isinstance(found, RankPart):
            figures = ranks.setdefault(found.rank, {})
            figures[found.name] = _sum(figures.get(found.name), found.value)
    return tuple(_rank_facts(label, figures) for label, figures in ranks.items())


def _rank_facts(label: str | None, figures: dict[str, Any]) -> RankFacts:
    return RankFacts(label, **figures)


def _better(old: Size | Count | Ratio | None, new: Size | Count | Ratio) -> Size | Count | Ratio:
    if isinstance(old, Size | Ratio) and isinstance(new, Size | Ratio) and old.rounding < new.rounding:
        return old
    return new


def _sum(old: Size | Count | Ratio | None, new: Size) -> Size:
    if not isinstance(old, Size):
        return new
    return Size(old.bytes + new.bytes, old.rounding + new.rounding, old.line)
