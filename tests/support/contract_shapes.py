"""Good objects of which one to three fields have another value: at a bound, beyond it, of another type, or not there.

The values come from the schema of each field, so that a new field is tried as soon as it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from random import Random
from typing import Any, Final

from contract_objects import ACCEPTED, Json
from kvquota_api.crd import RESOURCES, object_schema

QUANTITIES: Final = (
    "0", "1", "0.1", "1.5", "1Ki", "1.5Ki", "1e3", "1E3", "999m", "8Gi", "8.0Gi", "10Ei", "1000E", "1e30", "5.", "+5",
    ".5", "1n", "00005", "80GiB", "5 ", " 5", "-1", "1ki", "", ".", "1e100", "9" * 40, 0, 1, 2**31, 2**53, 2**63 - 1,
    2**63, 10**30, 1.5,
)  # fmt: skip
PERCENTS: Final = (
    "0", "100", "100.0", "100.00", "100.000", "2.5", "2.505", "04", "101", "-1", "+5", "5%", "", ".5", "5.", "99.99",
    "1e1", 0, 1, 100, 101, -1, 2.5,
)  # fmt: skip
TEXTS: Final = (
    "a", "a-b", "a.b", "A", "a/b", "-a", "a-", "a b", " a", "a\n", "a\nb", "ü", "a_b", "", "1", "a..b", "/a",
    "Authorization", "\u0000", "\u2028", "a\tb", "😀", 7, 1.5,
)  # fmt: skip
ANYTHING: Final[tuple[Any, ...]] = (None, True, "x", 1, 1.5, [], {}, [None], {"zzz": 1})


def _fields(schema: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    for name, child in schema.get("properties", {}).items():
        yield (*path, name), child
        yield from _fields(child, (*path, name))


_SPECS: Final = {
    resource.kind: tuple(_fields(object_schema(resource.model)["properties"]["spec"], ("spec",)))
    for resource in RESOURCES
}


def misshapen(seed: int) -> Json:
    """One object, the same for the same seed; a third of them are still right."""
    chance = Random(seed)
    raw = deepcopy(chance.choice(ACCEPTED)[1])
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        path, schema = chance.choice(_SPECS[raw["kind"]])
        _change(
            raw, path, chance.choice((_value_of(schema, chance), _value_of(schema, chance), chance.choice(ANYTHING)))
        )
    return raw


def _change(raw: Json, path: tuple[str, ...], value: Any) -> None:
    """Set a field, with the objects above it; leave the object as it is where something else is in the way."""
    target: Any = raw
    for step in path[:-1]:
        target = target.setdefault(step, {}) if isinstance(target, dict) else None
    if isinstance(target, dict):
        target[path[-1]] = value


def _value_of(schema: Mapping[str, Any], chance: Random) -> Any:
    if "x-kubernetes-int-or-string" in schema:
        return chance.choice(PERCENTS if schema.get("maximum") == 100 else QUANTITIES)
    makers: Mapping[str, Callable[[], Any]] = {
        "integer": lambda: chance.choice(_integers(schema)),
        "boolean": lambda: chance.choice((True, False, "true", 0)),
        "string": lambda: chance.choice(_texts(schema)),
    }
    make = makers.get(schema["type"])
    return chance.choice(ANYTHING) if make is None else make()


def _integers(schema: Mapping[str, Any]) -> tuple[Any, ...]:
    low, high = schema["minimum"], schema["maximum"]
    return (
        low,
        low + 1,
        high - 1,
        high,
        low - 1,
        high + 1,
        float(low + 1),
        low + 0.5,
        str(low),
        2**63,
        2**64,
        -(2**63),
    )


def _texts(schema: Mapping[str, Any]) -> tuple[Any, ...]:
    if "enum" in schema:
        return (*schema["enum"], *schema["enum"], schema["enum"][0].swapcase(), "", True, 0)
    longest = schema["maxLength"]
    return (*TEXTS, "x" * longest, "x" * (longest + 1), "é" * longest)
