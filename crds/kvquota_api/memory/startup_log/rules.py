"""How a line of a log becomes findings: a cue to look for, an expression for what follows it, and a reader.

Pure. Invariants:

1. The time is linear in the text: a cue is found by a plain search, and the expression sees at most `window` characters
   after it.
2. A line may be wrapped at any space: expressions allow any white space between words.
3. A figure without its unit or the word after it is not read: it may have been cut.

It does not know which findings make up a start: that is `reading`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kvquota_api.memory.inputs import EngineName
from kvquota_api.memory.startup_log.facts import CacheFacts, Notice, NoticeKind, OutOfMemory, Refusal, Setting
from kvquota_api.memory.startup_log.figures import SIZE, Count, Ratio, Size, Word, count, ratio, size

WINDOW: Final = 600  # characters after a cue that belong to it: more than the longest message has up to its last figure
MESSAGE_WINDOW: Final = 1_400  # the same for messages that are read as a whole: the longest has about 800
CONFIGURATION_WINDOW: Final = 65_536  # the same for lines that print a configuration: they have up to about 10_000
LEAD: Final = 60  # characters before a cue on its line that may belong to it


@dataclass(frozen=True, slots=True)
class Place:
    """Where a cue was found: the line, the process that speaks, and what stands `before` it; at most LEAD long."""

    line: int
    rank: str | None
    before: str


@dataclass(frozen=True, slots=True)
class RankFact:
    """A figure of the process `rank`; `name`: its field in RankFacts."""

    rank: str | None
    name: str
    value: Size | Count | Ratio


@dataclass(frozen=True, slots=True)
class RankPart:
    """A part of a figure of the process `rank`: parts of one start add up."""

    rank: str | None
    name: str
    value: Size


@dataclass(frozen=True, slots=True)
class Version:
    """The engine says its version."""

    word: Word


@dataclass(frozen=True, slots=True)
class Device:
    """The engine says what it runs on."""

    word: Word


Finding = RankFact | RankPart | Version | Device | Setting | Notice | CacheFacts | Refusal | OutOfMemory
Reader = Callable[["re.Match[str]", Place], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do at `cue`: if `pattern` matches what follows within `window` characters, `read` it.

    `engine`: whose line it is, None where several print it. `begins`: a number for lines that a process prints once per
    start, the lowest one in a log is taken to tell starts apart; None for all other lines.
    """

    engine: EngineName | None
    cue: str
    pattern: re.Pattern[str]
    read: Reader
    begins: int | None = None
    window: int = WINDOW


def following(text: str) -> re.Pattern[str]:
    """An expression in which each space of `text` is any white space."""
    return re.compile(r"\s{1,80}".join(text.split(" ")))


def size_rule(engine: EngineName, cue: str, after: str, name: str) -> Rule:
    """A rule for a cue, words, and a size of the process that speaks."""
    return Rule(engine, cue, following(after + r"\s{0,80}" + SIZE), sized(name))


def notice_rule(engine: EngineName, cue: str, after: str, kind: NoticeKind) -> Rule:
    """A rule for a notice; the expression's first group, if any, is its number."""

    def read(match: re.Match[str], place: Place) -> Iterable[Finding]:
        yield Notice(kind, place.line, ratio(match[1], place.line) if match.re.groups else None, place.rank)

    return Rule(engine, cue, following(after), read)


def setting_rule(engine: EngineName, cue: str, after: str, name: str) -> Rule:
    """A rule for one setting: the expression's first group is its value."""

    def read(match: re.Match[str], place: Place) -> Iterable[Finding]:
        yield Setting(name, match[1], place.line)

    return Rule(engine, cue, following(after), read)


def version_rule(engine: EngineName, cue: str, after: str, begins: int | None = None) -> Rule:
    """A rule for a line that names the version: the expression's first group."""

    def read(match: re.Match[str], place: Place) -> Iterable[Finding]:
        yield Version(Word(match[1], place.line))

    return Rule(engine, cue, following(after), read, begins)


def sized(*names: str) -> Reader:
    """A reader of sizes: groups 1 and 2 are number and unit of the first, 3 and 4 of the second, and so on."""

    def read(match: re.Match[str], place: Place) -> Iterable[Finding]:
        for index, name in enumerate(names):
            yield RankFact(place.rank, name, size(match[2 * index + 1], match[2 * index + 2], place.line))

    return read


def counted(*names: str) -> Reader:
    """A reader of whole numbers: group 1 is the first, and so on."""

    def read(match: re.Match[str], place: Place) -> Iterable[Finding]:
        for index, name in enumerate(names):
            yield RankFact(place.rank, name, count(match[index + 1], place.line))

    return read
