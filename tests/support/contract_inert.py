"""Objects that ask for what nothing acts upon yet, and objects that do not."""

from typing import Final

from contract_objects import Json, pool, quota

TRUNCATE: Final = {"enterPercent": 95, "exitPercent": 88, "maxContextTokens": 4096}
FALLBACK: Final = {"enterPercent": 96, "exitPercent": 88, "contextTokens": 4096}
ASKING: Final[dict[str, tuple[Json, list[str]]]] = {
    "nothing of a pool": (pool(), []),
    "a plugin that is off": (pool(engine__plugin="Off"), []),
    "a plugin that measures": (pool(engine__plugin="Measure"), ["spec.engine.plugin"]),
    "a plugin that enforces": (pool(engine__plugin="Enforce"), ["spec.engine.plugin"]),
    "truncation": (pool(degradation={"truncate": TRUNCATE}), ["spec.degradation.truncate"]),
    "all of a pool": (
        pool(engine__plugin="Measure", degradation={"truncate": TRUNCATE, "fallback": FALLBACK}),
        ["spec.engine.plugin", "spec.degradation.truncate", "spec.degradation.fallback"],
    ),
    "other rungs": (pool(degradation={"minDwellSeconds": 5}), []),
    "nothing of a quota": (quota(), []),
    "what is denied": (quota(degradation={"allowTruncation": False, "allowSmallerModel": False}), []),
    "a smaller model": (quota(degradation={"allowSmallerModel": True}), ["spec.degradation.allowSmallerModel"]),
    "all of a quota": (
        quota(degradation={"allowTruncation": True, "allowSmallerModel": True, "insteadOfRefusal": True}),
        [f"spec.degradation.{field}" for field in ("allowTruncation", "allowSmallerModel", "insteadOfRefusal")],
    ),
}
"""Name -> an object, and the fields of it that ask for such a thing."""
