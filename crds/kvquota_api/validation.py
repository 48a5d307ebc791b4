"""Judging one object as a user wrote it: shape, bounds and rules, with the path of each problem.

Decides what a problem is called; the judgement is that of the API server with the generated CRD, so `kvquota check` and
the embedded mode refuse what `kubectl apply` refuses. Pure.

Invariants:

1. Nothing that a user writes raises anything else than InvalidObjectError.
2. Rules are only asked when shape and bounds are right, as in the API server.
3. A null is read as if it were not there, and a number without a fraction (1.0) as an integer, as `kubectl apply` and
   the API server do; what is in a free-form field stays as it is.

It does not know other objects, and does not judge a stored status. One thing it refuses that the API server keeps: what
is nested more than MAX_DEPTH levels deep, in a field whose content is not ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from kvquota_api.meta import API_VERSION
from kvquota_api.model_pool import ModelPool
from kvquota_api.quoting import quoted
from kvquota_api.resource import Model
from kvquota_api.schema import structural_schema
from kvquota_api.tenant_quota import TenantQuota
from kvquota_api.words import PATTERN_WORDS

KINDS: Final[Mapping[str, type[Model]]] = {"ModelPool": ModelPool, "TenantQuota": TenantQuota}
# Fields whose content is not ours (a config.json, a drafter in the engine's words), each below the field it stands in.
FREE_FORM: Final = frozenset({("config", "inline"), ("speculation", "config")})

MAX_DEPTH: Final = 64  # levels of one object: our fields end at 9, a config.json at about 8; bounds recursion here

_SENTENCES: Final = {
    "missing": "is required: add it",
    "literal_error": "{given} must be one of {expected}",
    "greater_than_equal": "{given} must be at least {ge}",
    "less_than_equal": "{given} must be at most {le}",
    "int_or_string": "{given} must be a whole number or text in quotes",
    "int_type": "{given} must be an integer, without quotes",
    "string_type": "{given} must be text: put it in quotes",
    "bool_type": "{given} must be true or false, without quotes",
    "tuple_type": "must be a list",
    "dict_type": "must be an object with fields",
    "model_type": "must be an object with fields",
}  # by pydantic's name of the error; any other is said in pydantic's own words

_R = TypeVar("_R", bound=Model)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong and what to do. `path` as users write it (spec.kv.hard.percent), empty for the whole object."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class InvalidObjectError(ValueError):
    """An object that is refused; `problems` says why, at least one."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems


def parse_model_pool(raw: object) -> ModelPool:
    """Read a ModelPool. Raises InvalidObjectError."""
    return _parse(raw, ModelPool)


def parse_tenant_quota(raw: object) -> TenantQuota:
    """Read a TenantQuota. Raises InvalidObjectError."""
    return _parse(raw, TenantQuota)


def validate(raw: object) -> list[Problem]:
    """All problems of one object of either kind; empty when it is valid."""
    kind = raw.get("kind") if isinstance(raw, Mapping) else None
    model = KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        return [Problem("kind", f"{quoted(kind)} is none of {', '.join(KINDS)}")]
    try:
        _parse(raw, model)
    except InvalidObjectError as error:
        return list(error.problems)
    return []


def check_update(old: Model, new: Model) -> list[Problem]:
    """What of `new` must not replace `old`; both valid and of one kind."""
    return list(_forbidden_changes(old, new, ""))


def _parse(raw: object, kind: type[_R]) -> _R:
    if not isinstance(raw, Mapping):
        raise InvalidObjectError((Problem("", f"a {kind.__name__} must be an object, not {type(raw).__name__}"),))
    if raw.get("apiVersion") != API_VERSION:
        raise InvalidObjectError((Problem("apiVersion", f"{quoted(raw.get('apiVersion'))} must be {API_VERSION}"),))
    if _deeper_than(MAX_DEPTH, raw):
        raise InvalidObjectError((Problem("", f"is nested more than {MAX_DEPTH} levels deep: take out what is"),))
    try:
        model = kind.model_validate(_as_stored(raw), by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidObjectError(tuple(_problem(each, kind) for each in error.errors(include_url=False))) from None
    broken = tuple(_broken_rules(model, ""))
    if broken:
        raise InvalidObjectError(broken)
    return model


def _deeper_than(levels: int, value: Any) -> bool:
    level = [value]
    for _ in range(levels):
        level = [item for each in level for item in _inside(each)]
    return bool(level)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def _as_stored(value: Any, name: str = "") -> Any:
    if isinstance(value, Mapping):
        present = ((key, item) for key, item in value.items() if item is not None)
        return {key: item if (name, key) in FREE_FORM else _as_stored(item, key) for key, item in present}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return [_as_stored(item) for item in value] if isinstance(value, list) else value


def _broken_rules(model: Model, path: str) -> Iterator[Problem]:
    for rule in model.rules:
        if not rule.holds(model):
            yield Problem(_joined(path, rule.field), rule.message)
    for where, part in _parts(model, path):
        yield from _broken_rules(part, where)


def _parts(model: Model, path: str) -> Iterator[tuple[str, Model]]:
    for name, field in type(model).model_fields.items():
        value, where = getattr(model, name), _joined(path, field.alias or name)
        if isinstance(value, Model):
            yield where, value
        if isinstance(value, tuple):
            yield from ((f"{where}[{index}]", item) for index, item in enumerate(value) if isinstance(item, Model))


def _forbidden_changes(old: Model, new: Model, path: str) -> Iterator[Problem]:
    for rule in new.change_rules:
        if not rule.holds(old, new):
            yield Problem(_joined(path, rule.field), rule.message)
    before = dict(_parts(old, path))
    for where, part in _parts(new, path):
        if where in before:
            yield from _forbidden_changes(before[where], part, where)


def _joined(path: str, field: str) -> str:
    return f"{path}.{field}" if path and field else path or field


def _problem(error: ErrorDetails, kind: type[Model]) -> Problem:
    path = ""
    for part in error["loc"]:
        path = f"{path}[{part}]" if isinstance(part, int) else _joined(path, part)
    return Problem(path, _sentence(error, kind))


def _sentence(error: ErrorDetails, kind: type[Model]) -> str:
    limits, given = error.get("ctx", {}), quoted(error.get("input"))
    if error["type"] == "extra_forbidden":
        return _unknown_field(error["loc"], kind)
    if error["type"] == "literal_error" and isinstance(error.get("input"), bool):
        return f"{given} must be one of {limits['expected']}: put it in quotes, YAML reads Off and On as true and false"
    if error["type"] == "string_pattern_mismatch":
        return f"{given} {PATTERN_WORDS[limits['pattern']]}"
    words = {**limits, "given": given, "said": error["msg"]}
    return _SENTENCES.get(error["type"], "{said}").format(**words)


@cache
def _schema(kind: type[Model]) -> dict[str, Any]:
    return structural_schema(kind)


def _unknown_field(location: tuple[int | str, ...], kind: type[Model]) -> str:
    schema = _schema(kind)
    for part in location[:-1]:
        schema = schema["items"] if isinstance(part, int) else schema["properties"][part]
    known = sorted(schema.get("properties", ()))
    near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    meant = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}" if known else "it has no fields"
    return f"is not a field here; {meant}"
