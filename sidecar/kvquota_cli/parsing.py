"""An argparse parser that names the word at fault first, and what was probably meant."""

from __future__ import annotations

import argparse
import difflib
import importlib.metadata
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from kvquota_api.meta import DNS_LABEL_PATTERN, DNS_NAME_PATTERN
from kvquota_api.quoting import quoted

_NUMBER: Final = re.compile(r"-\.?[0-9]")  # a negative number is a value
LONGEST_NAME: Final = 253  # characters, by Kubernetes
LONGEST_NAMESPACE: Final = 63  # characters, by Kubernetes
_OBJECT: Final = re.compile(DNS_NAME_PATTERN)
_NAMESPACE: Final = re.compile(DNS_LABEL_PATTERN)
_LIKE: Final = 0.5  # of 1: how alike a wrong and a right option must be


class Parser(argparse.ArgumentParser):
    """Refuses abbreviated options: an option added later must not change what an old script means.

    `surplus`: what to do instead, for a word that the command has no use for. `words`: those that are being parsed.
    """

    def __init__(self, *, surplus: str = "", **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self._surplus = surplus
        self.words: tuple[str, ...] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, but nothing is left over, and a wrong option is told before one that is missing."""
        words = sys.argv[1:] if args is None else list(args)
        self.words = tuple(words)
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


class Once(argparse.Action):
    """Stores a value; a second one is an error. Its default is None: what was given and what was not differ."""

    def __call__(
        self, _: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """Store it. Raises argparse.ArgumentError."""
        refuse_second(self, namespace, option)
        setattr(namespace, self.dest, values)


def refuse_second(action: argparse.Action, namespace: argparse.Namespace, option: str | None) -> None:
    """Raises argparse.ArgumentError where the option has a value already."""
    if getattr(namespace, action.dest) is not None:
        raise argparse.ArgumentError(action, f"{option} is one too many: it was given before, keep one of them")


def path(text: str) -> Path:
    """A path that says something: the empty one would be the folder that one happens to be in."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty: name a file or a folder, . for the one that you are in")
    return Path(text)


def object_name(text: str) -> str:
    """The name of a Pod or of one of our resources, as Kubernetes has them."""
    if len(text) > LONGEST_NAME or _OBJECT.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} is no name: it is 1 to {LONGEST_NAME} lower-case letters, digits, '-' and '.', and begins"
            " and ends with a letter or digit"
        )
    return text


def namespace_name(text: str) -> str:
    """The name of a namespace."""
    if len(text) > LONGEST_NAMESPACE or _NAMESPACE.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} is no namespace: it is 1 to {LONGEST_NAMESPACE} lower-case letters, digits and '-', and"
            " begins and ends with a letter or digit"
        )
    return text


class ShowVersion(argparse.Action):
    """Prints the version of the installed package; it is looked up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **settings)

    def __call__(
        self, parser: argparse.ArgumentParser, _: argparse.Namespace, __: Any, option: str | None = None
    ) -> None:
        """Print it and end. Raises argparse.ArgumentError where there is anything beside it."""
        words = parser.words if isinstance(parser, Parser) else ()
        beside = " ".join(word for word in words if word != option)
        if beside:
            raise argparse.ArgumentError(None, f"{beside} is not expected beside {option}: leave it out")
        print(f"kvquota {importlib.metadata.version('kvquota')}")
        parser.exit()
