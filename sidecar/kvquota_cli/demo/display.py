"""What the demonstration shows while it runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from kvquota_cli.demo.tally import Tally
from kvquota_cli.demo.verdict import counts_of
from kvquota_cli.tables.table import Table, printed
from kvquota_cli.wrapping import terminal_columns, wrapped

PLAIN_EVERY: Final = 5  # looks, a second apart, from one printed table to the next


class Display(AbstractContextManager["Display"], Protocol):
    """A context manager that is told what happens."""

    def say(self, sentence: str) -> None:
        """Something that stays on the screen."""

    def show(self, table: Table, tallies: Mapping[str, Tally], *, telling: bool) -> None:
        """How it stands; about once a second. `telling`: the table is of this act, and not of its last moments."""

    def conclude(self, table: Table, tallies: Mapping[str, Tally]) -> None:
        """How it stands at the end of an act; this stays on the screen."""


class PlainDisplay:
    """A Display of lines."""

    def __init__(self) -> None:
        self._looks = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def say(self, sentence: str) -> None:
        _print_block(wrapped(sentence, terminal_columns()))

    def show(self, table: Table, tallies: Mapping[str, Tally], *, telling: bool) -> None:
        self._looks += 1
        if self._looks >= PLAIN_EVERY and telling:
            self.conclude(table, tallies)

    def conclude(self, table: Table, tallies: Mapping[str, Tally]) -> None:
        self._looks = 0
        _print_block(standing(table, tallies, terminal_columns()))


def _print_block(lines: Sequence[str]) -> None:
    print("\n".join([*lines, ""]), flush=True)


class LiveDisplay:
    """A Display on a terminal."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def say(self, sentence: str) -> None:
        self._live.console.print(Text(sentence), Text())

    def show(self, table: Table, tallies: Mapping[str, Tally], *, telling: bool) -> None:
        del telling
        self._live.update(self._drawn(table, tallies), refresh=True)

    def conclude(self, table: Table, tallies: Mapping[str, Tally]) -> None:
        self._live.update(Text(), refresh=True)
        self._live.console.print(self._drawn(table, tallies), Text())

    def _drawn(self, table: Table, tallies: Mapping[str, Tally]) -> Group:
        header, *lines = standing(table, tallies, self._console.width)
        return Group(_row(header, "bold"), *(_row(line, "") for line in lines))


def _row(line: str, style: str) -> Text:
    return Text(line, style=style, no_wrap=True, overflow="crop")


def standing(table: Table, tallies: Mapping[str, Tally], columns: int) -> Sequence[str]:
    """The table, and below it what each tenant was told so far."""
    counts = [line for each in tallies.items() for line in wrapped(f"{each[0]}: {counts_of(each[1])}", columns)]
    return (*printed(table, columns), *counts)
