"""Strict reading of the fields of a model config.

Decides whether a field has the form that a family expects of it. Pure.

Invariants:

1. Nothing is guessed: a field that is needed and not there, or that has another form, is a ModelConfigError that
   names it.
2. `null` is "not there", as in the config classes themselves.
3. No size passes MAX_SIZE, no list MAX_LAYERS: what is made of them stays printable and small.

It does not know what a field means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from kvquota_api.memory.errors import ModelConfigError, UnknownArchitectureError
from kvquota_api.quoting import quoted

MAX_SIZE: Final = 2**31  # of any size in a config: no model is near it, and products of sizes stay printable
MAX_LAYERS: Final = 4096  # of a model: ten times the deepest one, and a plan of them still takes milliseconds

Names = tuple[str, ...]


def shown(value: object) -> str:
    """A value in a message; of a list or an object, which may be nested without end, only what it is."""
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else quoted(value)


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a config, or of an object in it; `path`: of that object, with a dot at its end."""

    values: Mapping[str, Any]
    path: str = ""

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(name) is not None

    def says(self, name: str) -> bool:
        """Whether the field is there with a value that is not null, false, 0 or empty."""
        return bool(self.values.get(name))

    def count(self, name: str, missing: int | None = None) -> int:
        """A whole number from 1; `missing`: what the family's config class takes where the field is not there."""
        if missing is not None and not self.has(name):
            return missing
        return self._whole(name, 1)

    def size(self, name: str, missing: int | None = None) -> int:
        """A whole number from 0."""
        if missing is not None and not self.has(name):
            return missing
        return self._whole(name, 0)

    def count_or_none(self, name: str) -> int | None:
        """A whole number from 1, None where the field is not there."""
        return self.count(name) if self.has(name) else None

    def size_or_none(self, name: str) -> int | None:
        """A whole number from 0, None where the field is not there."""
        return self.size(name) if self.has(name) else None

    def first(self, names: Names) -> str:
        """The first of several names of one thing that is there; the first of all where none is."""
        return next((name for name in names if self.has(name)), names[0])

    def flag(self, name: str, missing: bool) -> bool:  # noqa: FBT001 - the value where there is none, no switch
        """A boolean."""
        if not self.has(name):
            return missing
        value = self.values[name]
        if not isinstance(value, bool):
            self.refuse(name, f"{shown(value)} is neither true nor false")
        return value

    def text(self, name: str) -> str | None:
        """A string that is not empty, None where the field is not there."""
        if not self.has(name):
            return None
        value = self.values[name]
        if not isinstance(value, str) or not value:
            self.refuse(name, f"{shown(value)} is not a name")
        return value

    def part(self, name: str) -> Fields:
        """An object."""
        value = self.values.get(name)
        if not isinstance(value, Mapping):
            self.refuse(name, f"{shown(value)} is not an object")
        return Fields(value, f"{self.path}{name}.")

    def sequence(self, name: str) -> Sequence[Any]:
        """A list of at most MAX_LAYERS entries."""
        value = self.values.get(name)
        if not isinstance(value, list | tuple):
            self.refuse(name, f"{shown(value)} is not a list")
        if len(value) > MAX_LAYERS:
            self.refuse(name, f"has {len(value)} entries, more than {MAX_LAYERS}")
        return value

    def numbers(self, name: str, missing: int | None = None) -> tuple[int, ...]:
        """A list of whole numbers from 0; `missing`: what stands for null."""
        listed = self.sequence(name)
        return tuple(Fields({name: each}, self.path).size(name, missing) for each in listed)

    def per_layer(self, name: str, layers: int) -> Sequence[Any]:
        """A list with an entry for each layer."""
        listed = self.sequence(name)
        if len(listed) != layers:
            self.refuse(name, f"has {len(listed)} entries for {layers} layers")
        return listed

    def layers(self, names: Names) -> int:
        """The number of layers, at most MAX_LAYERS."""
        name = self.first(names)
        layers = self.count(name)
        if layers > MAX_LAYERS:
            self.refuse(name, f"{layers} is more than {MAX_LAYERS} layers")
        return layers

    def few(self, name: str) -> int:
        """A number of layers that may be 0, at most MAX_LAYERS; 0 where the field is not there."""
        number = self.size(name, missing=0)
        if number > MAX_LAYERS:
            self.refuse(name, f"{number} is more than {MAX_LAYERS} layers")
        return number

    def words(self, name: str, layers: int, known: Mapping[str, str]) -> tuple[str, ...]:
        """One word per layer, in the spelling that `known` gives it; a word that is not known is an
        UnknownArchitectureError."""
        listed = self.per_layer(name, layers)
        for word in listed:
            if not isinstance(word, str) or word not in known:
                raise UnknownArchitectureError(
                    f"{self.path}{name}: {shown(word)} is a kind of layer that the planner does not know in this"
                    f" family; it knows {', '.join(sorted(known))}"
                )
        return tuple(known[word] for word in listed)

    def refuse(self, name: str, why: str) -> NoReturn:
        """Raises the ModelConfigError of a field."""
        raise ModelConfigError(f"{self.path}{name}: {why}; take it from the model's config.json")

    def _whole(self, name: str, least: int) -> int:
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_SIZE:
            self.refuse(name, f"{shown(value)} is not a whole number from {least} to {MAX_SIZE}")
        return value
