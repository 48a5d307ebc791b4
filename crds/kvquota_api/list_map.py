"""Lists whose items are told apart by one of their fields.

Decides that no two items have the same key, in Python and (as a list of type map) in the API server. Pure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.alias_generators import to_snake
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


@dataclass(frozen=True, slots=True)
class ListMap:
    """Annotation of a tuple of models: `key` is the field that tells them apart, as users write it."""

    key: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._refuse_repeated, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(core), "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.key]}

    def _refuse_repeated(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        counted = Counter(getattr(item, to_snake(self.key)) for item in items)
        repeated = [str(value) for value, count in counted.items() if count > 1]
        if repeated:
            raise PydanticCustomError(
                "duplicate",
                "{key} {values} occurs more than once: keep one",
                {"key": self.key, "values": ", ".join(repeated)},
            )
        return items
