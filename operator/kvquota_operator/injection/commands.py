"""What a container's command line says, as far as the engine behind it can be moved by arguments at its end.

Decides whether appended arguments would reach the engine, and which port it was told. Pure. Invariants:

1. Of an option that is given twice the last one counts, as in the engines.
2. What cannot be known (an unset variable, an image's own script) is not guessed: it counts as not said.

It does not know the entry point of an image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh"})
_WITH_VALUE: Final = frozenset({"-o", "+o", "-O", "+O"})  # of a shell: the next word is a value, not a program
_PASSED_ON: Final = ('"$@"', "$@", '"${@}"')  # a string that ends so hands its arguments to the program before them


def words_of(container: Mapping[str, Any]) -> list[str]:
    """Command and arguments, as they will be put together."""
    return [*(container.get("command") or []), *(container.get("args") or [])]


def is_shell_string(words: Sequence[str]) -> bool:
    """Whether a shell runs a string in which appended arguments get lost: they become its $0, $1, ..."""
    at = _string_at(words)
    if at is None:
        return False
    hands_on = at + 1 < len(words) and words[at].rstrip().endswith(_PASSED_ON)
    return not hands_on


def ends_options(words: Sequence[str]) -> bool:
    """Whether a bare `--` makes the engine read what is appended as something else than options.

    One that is the $0 of a shell's string does not, nor one between a wrapper and the program that it starts.
    """
    at = max((at for at, word in enumerate(words) if word == "--"), default=None)
    string = _string_at(words)
    if at is None or (string is not None and at == string + 1):
        return False
    starts_program = at + 1 < len(words) and words[at + 1][:1] != "-" and "serve" not in words[:at]
    return not starts_program


def values(words: Sequence[str], name: str) -> list[str]:
    """All values of `--name VALUE` and `--name=VALUE`, in their order."""
    found = []
    for at, word in enumerate(words):
        if word.startswith(f"{name}="):
            found.append(word.partition("=")[2])
        elif word == name and at + 1 < len(words):
            found.append(words[at + 1])
    return found


def option(words: Sequence[str], name: str) -> str | None:
    """The last value of an option; None where it is not given, or is a variable."""
    last = next(reversed(values(words, name)), None)
    return None if last is None or "$" in last else last


def has_option(words: Sequence[str], name: str) -> bool:
    """Whether `--name` is given, with whatever value."""
    return any(word == name or word.startswith(f"{name}=") for word in words)


def _string_at(words: Sequence[str]) -> int | None:
    """Where the string of a shell is; also of one that is the image's own entry point."""
    if len(words) > 1 and _runs_string(words[0]) and " " in words[1]:  # llama.cpp has a -c of its own, with a number
        return 1
    for at, word in enumerate(words):
        if PurePosixPath(word).name in _SHELLS:
            return _after_options(words, at + 1)
    return None


def _after_options(words: Sequence[str], at: int) -> int | None:
    while at < len(words) and words[at][:1] in ("-", "+"):
        if _runs_string(words[at]):
            return at + 1
        at += 2 if words[at] in _WITH_VALUE else 1
    return None


def _runs_string(word: str) -> bool:
    """As -c, -lc or -ec do. A word may be as long as a pod, so it is read once."""
    letters = word[1:]
    return word[:1] == "-" and letters.isascii() and letters.isalpha() and "c" in letters
