"""An argparse parser that names the word at fault first, and what was probably meant."""

from __future__ import annotations

import argparse
import difflib
import importlib.metadata
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

_NUMBER: Final = re.compile(r"-\.?[0-9]")  # a negative number is a value
_LIKE: Final = 0.5  # of 1: how alike a wrong and a right option must be


class Parser(argparse.ArgumentParser):
    """Refuses abbreviated options: an option added later must not change what an old script means.

    `surplus`: what to do instead, for a word that the command has no use for.
    """

    def __init__(self, *, surplus: str = "", **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self._surplus = surplus

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, but nothing is left over, and a wrong option is told before one that is missing."""
        words = sys.argv[1:] if args is None else list(args)
        for option in self._wrong(words):
            self.error(f"there is no option {option}: {self._meant(option)}")
        parsed, left = super().parse_known_args(words, namespace)
        if left:
            surplus = f": {self._surplus}" if self._surplus else ""
            self.error(f"{' '.join(left)} is not expected here{surplus}")
        return parsed, left

    def _wrong(self, words: Sequence[str]) -> Iterator[str]:
        """Options that this parser does not have; those of a command are left to the parser of it."""
        for word in words:
            if word == "--" or (self._subparsers is not None and not word.startswith("-")):
                return
            if self._is_wrong(word):
                yield word.partition("=")[0]

    def _is_wrong(self, word: str) -> bool:
        looks_so = len(word) > 1 and word.startswith("-") and _NUMBER.match(word) is None and " " not in word
        known = self._option_string_actions
        short = not word.startswith("--") and word[:2] in known
        return looks_so and not short and word.partition("=")[0] not in known

    def _meant(self, option: str) -> str:
        known = sorted(name for name in self._option_string_actions if name.startswith("--"))
        near = difflib.get_close_matches(option, known, n=1, cutoff=_LIKE)
        return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


class ShowVersion(argparse.Action):
    """Prints the version of the installed package; it is looked up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **settings)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        """Print it and end."""
        print(f"kvquota {importlib.metadata.version('kvquota')}")
        parser.exit()
