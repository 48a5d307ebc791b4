"""Random objects around the rules: most values are right by themselves, whether they are together is a toss-up.

For holding the two judges of an object against each other, the API server's CEL and the checks in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from contract_objects import Json, changed, pool, quota

_KEY = {"name": "secret", "key": "key"}
_NUMBERS = ("0", "1", ".5", "5.", "0.30", "1.5", "999", "1000", "1023", "1024", "1536", "2.000000001",
            "12345678901234567890", "9223372036854775807")  # fmt: skip
_SUFFIXES = (
    "",
    "n",
    "u",
    "m",
    "k",
    "Ki",
    "M",
    "Mi",
    "G",
    "Gi",
    "T",
    "Ti",
    "P",
    "Pi",
    "E",
    "Ei",
    "e3",
    "E3",
    "e-3",
    "e+3",
)


def random_object(seed: int) -> Json:
    """One object of either kind, the same for the same seed, with a name that no other seed gives."""
    chance, name = Random(seed), f"random-{seed}"
    return changed(_quota(chance) if seed % 2 else _pool(chance, name), {"metadata.name": name})


def _some(chance: Random, likely: float, choices: dict[str, Callable[[], Any]]) -> Json:
    """Each of these fields with this likelihood."""
    return {name: make() for name, make in choices.items() if chance.random() < likely}


def _quantity(chance: Random) -> int | str:
    text = chance.choice((*_NUMBERS, str(chance.randint(0, 2000)))) + chance.choice(_SUFFIXES)
    return chance.choice((text, text, chance.randint(0, 4000)))


def _percent(chance: Random) -> int | str:
    whole, hundredths = chance.randint(0, 99), chance.randint(0, 99)
    return chance.choice((whole, 100, str(whole), f"{whole}.{hundredths // 10}", f"{whole}.{hundredths:02d}"))


def _share(chance: Random, unit: str) -> Json:
    units: dict[str, Callable[[], Any]] = {
        "percent": lambda: _percent(chance), "bytes": lambda: _quantity(chance), "tokens": lambda: chance.randint(0, 50)
    }  # fmt: skip
    return {unit: units[unit](), **_some(chance, 0.05, units)}


def _kv(chance: Random) -> Json:
    unit = chance.choice(("percent", "bytes", "bytes", "tokens"))
    other = chance.choice((unit, unit, unit, "tokens"))
    return _some(chance, 0.9, {"soft": lambda: _share(chance, unit), "hard": lambda: _share(chance, other)})


def _quota(chance: Random) -> Json:
    def switch() -> bool:
        return chance.random() < 0.5

    return quota(kv=_kv(chance), **_some(chance, 0.3, {
        "degradation": lambda: _some(chance, 0.7, {
            "allowTruncation": switch, "allowSmallerModel": switch, "insteadOfRefusal": switch,
        }),
        "identity": lambda: _some(chance, 0.6, {
            "headerValue": lambda: chance.choice(("search", None)),
            "apiKeys": lambda: chance.choice(([], [{"secretRef": _KEY}], None)),
        }),
    }))  # fmt: skip


def _rung(chance: Random, **more: Any) -> Json:
    enter = chance.randint(84, 98)
    return {"enterPercent": enter, "exitPercent": enter - chance.randint(-1, 6), **more}


def _degradation(chance: Random, pool_name: str) -> Json:
    return _some(chance, 0.4, {
        "shed": lambda: _rung(chance),
        "evict": lambda: _rung(chance),
        "truncate": lambda: _rung(chance, maxContextTokens=5),
        "fallback": lambda: _rung(chance, **_some(chance, 0.6, {
            "contextTokens": lambda: 5, "modelPoolRef": lambda: {"name": chance.choice((pool_name, "small"))},
        })),
    })  # fmt: skip


def _sidecar(chance: Random) -> Json:
    return _some(chance, 0.5, {
        "takeover": lambda: chance.choice(("Port", "None")),
        "port": lambda: chance.choice((8080, 9600, 8000, 9601)),
        "adminPort": lambda: chance.choice((9600, 9601, 8000)),
        "identity": lambda: {
            "apiKeyHeader": chance.choice(("X-Tenant", "x-key", "Authorization")),
            "trustedHeader": {"name": chance.choice(("x-tenant", "X-KEY")), "sharedSecretRef": _KEY},
        },
    })  # fmt: skip


def _engine(chance: Random) -> Json:
    degrees = ("tensor", "pipeline", "data", "decodeContext")
    return {"type": chance.choice(("vLLM", "vLLM", "SGLang", "LlamaCpp", "OpenAI")), **_some(chance, 0.4, {
        "port": lambda: chance.choice((80, 1023, 1024, 8000, 9600, 8080)),
        "slots": lambda: 2,
        "unifiedKvCache": lambda: chance.random() < 0.5,
        "asyncScheduling": lambda: chance.random() < 0.5,
        "plugin": lambda: chance.choice(("Off", "Measure")),
        "speculation": lambda: chance.choice(({}, {"tokens": 1}, {"config": {}}, {"config": {"method": None}})),
        "parallelism": lambda: _some(chance, 0.6, dict.fromkeys(degrees, lambda: chance.randint(1, 4))),
    })}  # fmt: skip


def _pool(chance: Random, name: str) -> Json:
    return pool(engine=_engine(chance), gpu__count=chance.randint(4, 16), **_some(chance, 0.3, {
        "degradation": lambda: _degradation(chance, name),
        "sidecar": lambda: _sidecar(chance),
        "tiers": lambda: [{"name": tier, "kv": _kv(chance)} for tier in chance.sample("ab", chance.randint(0, 2))],
        "memory": lambda: {"kvPool": _some(chance, 0.3, {
            "percent": lambda: _percent(chance), "bytes": lambda: _quantity(chance), "remainder": dict,
        })},
        "selector": lambda: _some(chance, 0.6, {
            "matchLabels": lambda: chance.choice(({}, {"app": "llama"})),
            "matchExpressions": lambda: [{"key": "app", "operator": chance.choice(("In", "Exists")), "values": ["a"]}],
        }),
        "model__valueCacheDtype": lambda: "q8_0",
        "model__config": lambda: _some(chance, 0.5, {
            "preset": lambda: "llama-3.1-8b", "configMapRef": lambda: _KEY, "inline": dict,
        }),
    }))  # fmt: skip
