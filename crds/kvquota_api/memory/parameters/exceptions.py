"""Which modules of a checkpoint a list of names and patterns means.

Decides whether such a list, as checkpoints have it for what is not quantised, covers a module. Pure.

Invariants:

1. A name covers the module of that name and all within it; one without a layer number covers it in every layer.
2. `*` and `.*` stand for any text; of regular expressions (`re:`) only what `_PIECE` allows is taken, so that matching
   takes no longer than a few passes over a name. Everything else is a ModelConfigError that names the pattern.
3. What stands before `layers.` in a name does not matter: engines and checkpoints differ in it.
4. Layers that `sign` gives the same value have the same modules covered, but for the number in their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kvquota_api.memory.models.fields import Fields
from kvquota_api.quoting import quoted

MAX_PATTERN: Final = 300  # characters of one pattern: module names are shorter
_ROOTS: Final = (
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.",
    "backbone.",
)
_LAYER: Final = re.compile(r"\blayers\.(\d+)(?:\.|\*|$)")
_PIECE: Final = re.compile(r"(?:[\w\-\\.^$?:|()\[\]]|\\d\+|\[0-9\]\+)*")  # no repetition but of digits
_ANY_NUMBER: Final = "[0-9]+"
_TELLS_DIGITS: Final = re.compile(r"[0-9\[]")  # in an expression without _ANY_NUMBER: it may tell digits apart

Covers = Callable[[str], bool]
Sign = tuple[int, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Modules:
    """A set of modules. `of_layer`: what covers modules of one layer, `anywhere`: of every layer or of none.

    `signs`: the patterns of a layer without its number; `numbered`: whether one of `anywhere` may tell a layer from
    another by more than how many digits its number has.
    """

    of_layer: Mapping[int, tuple[Covers, ...]] = field(default_factory=dict)
    anywhere: tuple[Covers, ...] = ()
    signs: Mapping[int, frozenset[str]] = field(default_factory=dict)
    numbered: bool = False

    def covers(self, module: str, layer: int | None = None) -> bool:
        """Whether `module` (its full name without what stands before `layers.`) is among them."""
        own = () if layer is None else self.of_layer.get(layer, ())
        return any(each(module) for each in (*own, *self.anywhere))

    def sign(self, layer: int) -> Sign:
        """Equal for layers of which the same modules are covered."""
        return layer if self.numbered else len(str(layer)), self.signs.get(layer, frozenset())


def modules_of(fields: Fields, name: str) -> Modules:
    """The modules that the list in `fields.name` means; none where it is not there."""
    if not fields.has(name):
        return Modules()
    value = fields.values[name]
    if not isinstance(value, list | tuple | Mapping):
        fields.refuse(name, "not a list of modules")
    return gathered(fields, name, value)


def gathered(fields: Fields, name: str, patterns: Iterable[object]) -> Modules:
    """The modules that `patterns` mean; `fields` and `name` say in a message where they stand."""
    of_layer: dict[int, list[tuple[str, Covers]]] = {}
    anywhere: list[Covers] = []
    numbered = False
    for pattern in patterns:
        if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN:
            fields.refuse(name, "has an entry that is no pattern of module names")
        number = None if pattern.startswith("re:") else _LAYER.search(pattern)
        covers = _matcher(fields, name, pattern)
        if number is None:
            anywhere.append(covers)
            numbered = numbered or _tells_numbers(pattern)
        else:
            sign = pattern[: number.start(1)] + pattern[number.end(1) :]
            of_layer.setdefault(int(number.group(1)), []).append((sign, covers))
    return Modules(
        {layer: tuple(covers for _, covers in each) for layer, each in of_layer.items()},
        tuple(anywhere),
        {layer: frozenset(sign for sign, _ in each) for layer, each in of_layer.items()},
        numbered,
    )


def _tells_numbers(pattern: str) -> bool:
    """Whether a pattern without a layer may hold for one layer, and not for another whose number is as long."""
    if pattern.startswith("re:"):
        return _TELLS_DIGITS.search(pattern.replace(_ANY_NUMBER, "")) is not None
    plain = without_root(pattern)
    return (_TELLS_DIGITS.search(plain) if "*" in plain else _TELLS_DIGITS.match(plain)) is not None


def without_root(module: str) -> str:
    """The name without what stands before `layers.`."""
    for root in _ROOTS:
        if module.startswith(root):
            return module.removeprefix(root)
    return module


def _matcher(fields: Fields, name: str, pattern: str) -> Covers:
    if pattern.startswith("re:"):
        return _expression(fields, name, pattern.removeprefix("re:"))
    plain = without_root(pattern)
    if "*" in plain:
        return _glob(plain.split("*"))
    plain = plain.removesuffix(".weight")

    def covers(module: str) -> bool:
        return f".{plain}." in f".{module}."

    return covers


def _glob(pieces: list[str]) -> Covers:
    def covers(module: str) -> bool:
        if not module.startswith(pieces[0]) or not module.endswith(pieces[-1]):
            return False
        end = len(pieces[0])
        for piece in pieces[1:]:
            found = module.find(piece, end)
            if found < 0:
                return False
            end = found + len(piece)
        return True

    return covers


def _expression(fields: Fields, name: str, pattern: str) -> Covers:
    """A regular expression that has to match from a name's beginning."""
    pieces = pattern.removeprefix("^").split(".*")
    if not all(_PIECE.fullmatch(piece) for piece in pieces):
        fields.refuse(name, f"the planner does not know the pattern {quoted(pattern)}: state weightDtype instead")
    try:
        compiled = [re.compile(piece) for piece in pieces]
    except re.error:
        fields.refuse(name, f"{quoted(pattern)} is no regular expression")
    roots = ("", *_ROOTS) if pieces[0] else ("",)

    def covers(module: str) -> bool:
        return any(_follow(compiled, f"{root}{module}") for root in roots)

    return covers


def _follow(pieces: list[re.Pattern[str]], name: str) -> bool:
    """Whether the pieces follow each other in `name`, the first one at its beginning."""
    first = pieces[0].match(name)
    end = -1 if first is None else first.end()
    for piece in pieces[1:]:
        found = piece.search(name, end) if end >= 0 else None
        end = -1 if found is None else found.end()
    return end >= 0
