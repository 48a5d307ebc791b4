"""Objects as users write them, and the table of what is refused in them.

One table for both judges: `kvquota_api.validation` in the unit tests, and a real API server with the generated CRDs in
the integration tests.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

ABSENT = object()
"""As a value of `changed`: the field is taken out."""


def changed(raw: Json, changes: Mapping[str, Any]) -> Json:
    """A copy of `raw` in which each dotted path has its new value; a number in a path is a place in a list."""
    copy = deepcopy(raw)
    for path, value in changes.items():
        *parents, last = path.split(".")
        target: Any = copy
        for part in parents:
            target = target[int(part)] if part.isdigit() else target.setdefault(part, {})
        if value is ABSENT:
            del target[last]
        else:
            target[last] = value
    return copy


def quota(**changes: Any) -> Json:
    """The smallest TenantQuota that is right, with fields of its spec changed: `__` stands for a dot."""
    raw = {
        "apiVersion": "kvquota.dev/v1alpha1",
        "kind": "TenantQuota",
        "metadata": {"name": "search", "namespace": "default"},
        "spec": {"tenant": "search", "modelPoolRef": {"name": "llama"}},
    }
    return changed(raw, _in_spec(changes))


def pool(**changes: Any) -> Json:
    """The smallest ModelPool that is right, with fields of its spec changed: `__` stands for a dot."""
    raw = {
        "apiVersion": "kvquota.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {"name": "llama", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"app": "llama"}},
            "model": {"name": "llama-3.1-8b-instruct", "config": {"preset": "llama-3.1-8b"}},
            "engine": {"type": "vLLM"},
            "gpu": {"memory": "80Gi"},
        },
    }
    return changed(raw, _in_spec(changes))


def _in_spec(changes: Mapping[str, Any]) -> Json:
    return {f"spec.{path.replace('__', '.')}": value for path, value in changes.items()}


@dataclass(frozen=True, slots=True)
class Refused:
    """`path` and `message` of the one problem; `server`: what the API server says, where that is not `message`."""

    says: str
    raw: Json
    path: str
    message: str
    server: str = ""


@dataclass(frozen=True, slots=True)
class RefusedUpdate:
    says: str
    old: Json
    new: Json
    path: str
    message: str


_UNIONS = "set exactly one of percent, bytes or tokens"
_RUNG = "exitPercent must be less than enterPercent, or the rung would begin and end at once: lower it"
_SOFT = "soft must not be more than hard: lower soft or raise hard"
_VALUES = "In and NotIn need values, Exists and DoesNotExist must not have any"
_TAKEN = "engine.port is taken by the sidecar: change sidecar.adminPort or sidecar.port"
_OWN_PORT = "set port with takeover None, and leave it out with takeover Port: there it is the engine's own"
_ABOVE = "fallback must not begin before the rungs above it: raise fallback.enterPercent"
_LABEL = "may have lower-case letters, digits and - only, with a letter or digit at both ends"
_PERCENT = "is not a percent: write a number from 0 to 100 with at most two decimals"
_QUANTITY = "is not a quantity of bytes: write a number and a suffix, as in 8Gi or 500M"
_KEY = {"name": "search-key", "key": "key"}

ACCEPTED: tuple[tuple[str, Json], ...] = (
    ("the smallest quota", quota()),
    ("a quota with everything", quota(
        tier="gold", priority=1000, scope="Pool", kv={"soft": {"percent": "2.5"}, "hard": {"bytes": "8Gi"}},
        maxConcurrentRequests=1, maxContextTokens=1, enforcement="Shadow",
        degradation={"allowTruncation": True, "insteadOfRefusal": True},
        identity={"apiKeys": [{"secretRef": _KEY}], "headerValue": "search team"},
    )),
    ("the same percent, spelt otherwise", quota(kv={"soft": {"percent": "4.0"}, "hard": {"percent": 4}})),
    ("percents that sort wrongly as text", quota(kv={"soft": {"percent": "9"}, "hard": {"percent": "10"}})),
    ("the same bytes, spelt otherwise", quota(kv={"soft": {"bytes": "1Ki"}, "hard": {"bytes": 1024}})),
    ("bytes that differ by less than is told apart", quota(kv={"soft": {"bytes": "1n"}, "hard": {"bytes": "0.5n"}})),
    ("bytes beyond what binary suffixes tell apart", quota(kv={"soft": {"bytes": "10Ei"}, "hard": {"bytes": "9Ei"}})),
    ("whole numbers with a point", quota(priority=100.0, kv={"hard": {"tokens": 1e3}})),
    ("soft and hard that cannot be compared here", quota(kv={"soft": {"tokens": 10**9}, "hard": {"percent": 1}})),
    ("a tenant that may hold nothing", quota(kv={"hard": {"percent": 0}})),
    ("a null where a field may be missing", quota(tier=None, kv={"soft": None, "hard": {"tokens": 1, "bytes": None}})),
    ("a null where a field has a default", quota(scope=None)),
    ("the smallest pool", pool()),
    ("a pool that takes what is left of the card", pool(memory={"kvPool": {"remainder": {}}})),
    ("a pool of bytes in decimal units", pool(memory={"kvPool": {"bytes": "36.5e9"}})),
    ("an inline config with fields of its own", pool(model__config={"inline": {"rope": {"factor": None}, "x": [1]}})),
    ("all that the planner can be told of a vLLM", pool(
        model__dtype="fp16", model__weightDtype="nvfp4", model__kvCacheDtype="fp8_ds_mla", model__stateDtype="fp32",
        engine__maxNumSeqs=256, engine__maxNumBatchedTokens=8192, engine__prefixCaching=False,
        engine__asyncScheduling=True, engine__hybridKvCacheManager=False, engine__blockSize=64,
        engine__speculation={"tokens": 3, "config": {"method": "eagle3", "model": {"head_dim": None, "x": [1.5]}}},
        gpu={"memory": "79.18Gi", "platform": "cuda-sm90"},
        memory={"weights": "14.99Gi", "activation": "6Gi", "other": "1.5Gi", "kvPool": {"tokens": 100_000}},
    )),
    ("all that the planner can be told of a llama.cpp", pool(
        engine={
            "type": "LlamaCpp", "slots": 4, "unifiedKvCache": True, "speculation": {"tokens": 4, "draftLayers": 16}
        },
        model__weightDtype="q4_k", model__kvCacheDtype="q8_0", model__valueCacheDtype="q4_0",
        gpu={"memory": "64Gi", "platform": "cpu"},
    )),
    ("a config in a ConfigMap", pool(model__config={"configMapRef": {"name": "configs", "key": "config.json"}})),
    ("a rung that begins with the one before", pool(degradation={
        "truncate": {"enterPercent": 92, "exitPercent": 88, "maxContextTokens": 16384},
        "fallback": {"enterPercent": 92, "exitPercent": 85, "modelPoolRef": {"name": "small"}},
    })),
    ("a fallback without truncation", pool(
        degradation={"fallback": {"enterPercent": 92, "exitPercent": 0, "contextTokens": 8192}}
    )),
    ("parallelism that uses all GPUs", pool(
        gpu__count=8, engine__parallelism={"tensor": 4, "data": 2, "decodeContext": 2}
    )),
    ("a sidecar beside the engine's port", pool(engine__port=80, sidecar={"takeover": "None", "port": 8080})),
    ("a selector of expressions", pool(selector={"matchExpressions": [
        {"key": "example.com/model", "operator": "In", "values": ["llama", ""]},
        {"key": "canary", "operator": "DoesNotExist"},
    ]})),
    ("tiers, a mix and all ways to be known", pool(
        tiers=[{"name": "gold", "kv": {"soft": {"percent": 40}}}, {"name": "free", "priority": 0}],
        workload={"contextMix": [{"contextTokens": 1024, "weight": 9}, {"contextTokens": 8192, "weight": 1}]},
        sidecar__identity={
            "apiKeyHeader": "x-api-key",
            "jwt": {"issuer": "https://issuer.example", "audience": "kvquota",
                    "keysRef": {"configMap": {"name": "jwks", "key": "jwks.json"}}},
            "trustedHeader": {"name": "x-tenant", "sharedSecretRef": {"name": "gateway", "key": "token"}},
        },
    )),
)  # fmt: skip

BROKEN_RULES: tuple[Refused, ...] = (
    Refused("a share in two units", quota(kv={"soft": {"percent": 1, "tokens": 1}}), "spec.kv.soft", _UNIONS),
    Refused("a share in no unit", quota(kv={"hard": {}}), "spec.kv.hard", _UNIONS),
    Refused("a tier's share in two units", pool(tiers=[{"name": "a", "kv": {"hard": {"bytes": 1, "tokens": 1}}}]),
            "spec.tiers[0].kv.hard", _UNIONS),
    Refused("soft above hard in percent", quota(kv={"soft": {"percent": "4.01"}, "hard": {"percent": 4}}),
            "spec.kv", _SOFT),
    Refused("soft above hard in bytes", quota(kv={"soft": {"bytes": "1025Mi"}, "hard": {"bytes": "1Gi"}}),
            "spec.kv", _SOFT),
    Refused("soft above hard by a part of a byte", quota(kv={"soft": {"bytes": "0.9"}, "hard": {"bytes": "0.1"}}),
            "spec.kv", _SOFT),
    Refused("soft above hard beyond 63 bits", quota(kv={"soft": {"bytes": "1000E"}, "hard": {"bytes": "100E"}}),
            "spec.kv", _SOFT),
    Refused("soft above hard in tokens", quota(kv={"soft": {"tokens": 11}, "hard": {"tokens": 10}}), "spec.kv", _SOFT),
    Refused("soft above hard in a tier", pool(tiers=[
        {"name": "free"}, {"name": "gold", "kv": {"soft": {"percent": 2}, "hard": {"percent": 1}}},
    ]), "spec.tiers[1].kv", _SOFT),
    Refused("an identity that names nothing", quota(identity={"apiKeys": []}), "spec.identity",
            "name at least one API key or a headerValue, or leave identity out"),
    Refused("something instead of a refusal, but what", quota(degradation={"insteadOfRefusal": True}),
            "spec.degradation.insteadOfRefusal",
            "insteadOfRefusal needs something to do instead: set allowTruncation or allowSmallerModel"),
    Refused("a selector of every pod", pool(selector={"matchLabels": {}}), "spec.selector",
            "the selector would match every pod: set matchLabels or matchExpressions"),
    Refused("an expression that misses its values", pool(
        selector={"matchExpressions": [{"key": "app", "operator": "NotIn"}]}
    ), "spec.selector.matchExpressions[0].values", _VALUES),
    Refused("an expression with values that mean nothing", pool(
        selector={"matchExpressions": [{"key": "app", "operator": "Exists", "values": ["a"]}]}
    ), "spec.selector.matchExpressions[0].values", _VALUES),
    Refused("a config from two places", pool(model__config={"preset": "llama-3.1-8b", "inline": {}}),
            "spec.model.config", "set exactly one of preset, configMapRef or inline"),
    Refused("a KV pool in two units", pool(memory={"kvPool": {"percent": 30, "remainder": {}}}), "spec.memory.kvPool",
            "set exactly one of percent, bytes, tokens or remainder"),
    Refused("decode context that does not divide tensor", pool(
        gpu__count=4, engine__parallelism={"tensor": 4, "decodeContext": 3}
    ), "spec.engine.parallelism.decodeContext",
            "decodeContext must divide tensor: lower decodeContext or raise tensor"),
    Refused("more parallelism than GPUs", pool(
        gpu__count=4, engine__parallelism={"tensor": 2, "pipeline": 2, "data": 2}
    ), "spec.gpu.count",
            "tensor times pipeline times data is more than gpu.count: raise it or lower engine.parallelism"),
    Refused("a privileged port to stand on", pool(engine__port=1023), "spec.engine.port",
            "the sidecar cannot take a port below 1024: serve on a higher one, or set sidecar.takeover None"),
    Refused("the admin port where the engine serves", pool(engine__port=9600), "spec.sidecar",
            _TAKEN),
    Refused("the sidecar's port where the engine serves", pool(sidecar={"takeover": "None", "port": 8000}),
            "spec.sidecar", _TAKEN),
    Refused("no takeover and no port", pool(sidecar={"takeover": "None"}), "spec.sidecar.port",
            _OWN_PORT),
    Refused("a takeover and a port", pool(sidecar={"port": 8080}), "spec.sidecar.port",
            _OWN_PORT),
    Refused("one port for traffic and admin", pool(sidecar={"takeover": "None", "port": 9600}), "spec.sidecar.port",
            "port and adminPort must differ: change one of them"),
    Refused("two places for keys", pool(sidecar__identity={"jwt": {
        "issuer": "https://issuer.example", "audience": "kvquota", "keysRef": {"configMap": _KEY, "secret": _KEY},
    }}), "spec.sidecar.identity.jwt.keysRef", "set exactly one of configMap or secret"),
    Refused("one header for the key and for the tenant", pool(sidecar__identity={
        "apiKeyHeader": "X-Tenant", "trustedHeader": {"name": "x-tenant", "sharedSecretRef": _KEY},
    }), "spec.sidecar.identity.trustedHeader.name",
            "trustedHeader.name and apiKeyHeader must differ: rename one of them"),
    Refused("a plugin in an engine that has none", pool(engine={"type": "SGLang", "plugin": "Measure"}),
            "spec.engine.plugin", 'the plugin runs inside vLLM only: set plugin "Off" (with quotes) or type vLLM'),
    Refused("slots in an engine that has none", pool(engine={"type": "vLLM", "slots": 4}), "spec.engine.slots",
            "slots are llama.cpp's: set type LlamaCpp, or leave them out and say maxNumSeqs"),
    Refused("a cache shared by slots in an engine that has none", pool(engine={"type": "vLLM", "unifiedKvCache": True}),
            "spec.engine.unifiedKvCache", "unifiedKvCache is llama.cpp's: leave it out or set type LlamaCpp"),
    Refused("a type of V alone in an engine that has one type", pool(model__valueCacheDtype="q4_0"),
            "spec.model.valueCacheDtype", "valueCacheDtype is llama.cpp's: leave it out or set engine.type LlamaCpp"),
    Refused("asynchronous scheduling in another engine", pool(engine={"type": "SGLang", "asyncScheduling": False}),
            "spec.engine.asyncScheduling", "asyncScheduling is vLLM's: leave it out or set type vLLM"),
    Refused("a drafter in vLLM's words for another engine", pool(
        engine={"type": "SGLang", "speculation": {"config": {"method": "eagle"}}}
    ), "spec.engine.speculation.config",
            "speculation.config is in vLLM's words: say tokens and draftLayers instead, or set type vLLM"),
    Refused("a rung that ends where it begins", pool(degradation={"shed": {"enterPercent": 80, "exitPercent": 80}}),
            "spec.degradation.shed.exitPercent", _RUNG),
    Refused("a truncation that ends above where it begins", pool(
        degradation={"truncate": {"enterPercent": 95, "exitPercent": 96, "maxContextTokens": 1}}
    ), "spec.degradation.truncate.exitPercent", _RUNG),
    Refused("a fallback that ends where it begins", pool(
        degradation={"fallback": {"enterPercent": 95, "exitPercent": 95, "contextTokens": 1}}
    ), "spec.degradation.fallback.exitPercent", _RUNG),
    Refused("a fallback to nothing", pool(degradation={"fallback": {"enterPercent": 95, "exitPercent": 85}}),
            "spec.degradation.fallback",
            "fallback needs something to fall back to: set contextTokens, modelPoolRef or both"),
    Refused("eviction before shedding", pool(degradation={"shed": {"enterPercent": 93, "exitPercent": 80}}),
            "spec.degradation.evict.enterPercent",
            "evict must not begin before shed: raise evict.enterPercent or lower shed.enterPercent"),
    Refused("truncation before eviction", pool(
        degradation={"truncate": {"enterPercent": 91, "exitPercent": 80, "maxContextTokens": 1}}
    ), "spec.degradation.truncate.enterPercent",
            "truncate must not begin before evict: raise truncate.enterPercent or lower evict.enterPercent"),
    Refused("fallback before truncation", pool(degradation={
        "truncate": {"enterPercent": 96, "exitPercent": 80, "maxContextTokens": 1},
        "fallback": {"enterPercent": 95, "exitPercent": 80, "contextTokens": 1},
    }), "spec.degradation.fallback.enterPercent",
            _ABOVE),
    Refused("fallback before eviction", pool(
        degradation={"fallback": {"enterPercent": 91, "exitPercent": 80, "contextTokens": 1}}
    ), "spec.degradation.fallback.enterPercent",
            _ABOVE),
    Refused("a fallback to itself", pool(
        degradation={"fallback": {"enterPercent": 95, "exitPercent": 85, "modelPoolRef": {"name": "llama"}}}
    ), "spec.degradation.fallback.modelPoolRef",
            "a pool cannot fall back to itself: name another ModelPool in degradation.fallback.modelPoolRef"),
)  # fmt: skip

BROKEN_SHAPES: tuple[Refused, ...] = (
    Refused("a field that does not exist", quota(kv={"hrad": {"percent": 1}}), "spec.kv.hrad",
            "is not a field here; did you mean hard?", 'unknown field "spec.kv.hrad"'),
    Refused("a field in Python's spelling", pool(model__max_model_len=1), "spec.model.max_model_len",
            "is not a field here; did you mean maxModelLen?", 'unknown field "spec.model.max_model_len"'),
    Refused("a field unlike any other", quota(identity={"headerValue": "a", "zzz": 1}), "spec.identity.zzz",
            "is not a field here; known are apiKeys, headerValue", 'unknown field "spec.identity.zzz"'),
    Refused("a field of an item of a list", pool(tiers=[{"name": "gold", "prio": 1}]), "spec.tiers[0].prio",
            "is not a field here; did you mean priority?", 'unknown field "spec.tiers[0].prio"'),
    Refused("a field where there are none", pool(memory={"kvPool": {"remainder": {"percent": 1}}}),
            "spec.memory.kvPool.remainder.percent", "is not a field here; it has no fields",
            'unknown field "spec.memory.kvPool.remainder.percent"'),
    Refused("no tenant", quota(tenant=ABSENT), "spec.tenant", "is required: add it", "Required value"),
    Refused("no spec", changed(quota(), {"spec": ABSENT}), "spec", "is required: add it", "Required value"),
    Refused("a priority above the range", quota(priority=1001), "spec.priority", "1001 must be at most 1000",
            "should be less than or equal to 1000"),
    Refused("a priority below the range", quota(priority=-1), "spec.priority", "-1 must be at least 0",
            "should be greater than or equal to 0"),
    Refused("a number in quotes", quota(priority="100"), "spec.priority", "'100' must be an integer, without quotes",
            "must be of type integer"),
    Refused("a switch in quotes", pool(engine__prefixCaching="yes"), "spec.engine.prefixCaching",
            "'yes' must be true or false, without quotes", "must be of type boolean"),
    Refused("a word that is not in the list", quota(scope="Cluster"), "spec.scope",
            "'Cluster' must be one of 'PerReplica' or 'Pool'", 'supported values: "PerReplica", "Pool"'),
    Refused("Off without quotes", pool(engine__plugin=False), "spec.engine.plugin",
            "False must be one of 'Off', 'Measure' or 'Enforce': put it in quotes,"
            " YAML reads Off and On as true and false",
            "must be of type string"),
    Refused("a percent above 100", quota(kv={"soft": {"percent": 101}}), "spec.kv.soft.percent",
            f"101 {_PERCENT}",
            "should be less than or equal to 100"),
    Refused("a percent of three decimals", quota(kv={"soft": {"percent": "2.505"}}), "spec.kv.soft.percent",
            f"'2.505' {_PERCENT}", "should match"),
    Refused("a percent with decimals and without quotes", quota(kv={"soft": {"percent": 2.5}}), "spec.kv.soft.percent",
            "2.5 must be a whole number or text in quotes", "must be of type"),
    Refused("a quantity with a unit that is none", pool(gpu__memory="80GiB"), "spec.gpu.memory",
            f"'80GiB' {_QUANTITY}", "should match"),
    Refused("a quantity below 0", pool(gpu__memory=-1), "spec.gpu.memory",
            f"-1 {_QUANTITY}",
            "should be greater than or equal to 0"),
    Refused("a quantity of more than 63 bits without quotes", pool(gpu__memory=2**63), "spec.gpu.memory",
            "is too large for a number: write it as text with a suffix, as in 8Gi", "must be of type"),
    Refused("a quantity that is a switch", pool(gpu__memory=True), "spec.gpu.memory",
            "True must be a whole number or text in quotes", "must be of type"),
    Refused("a tenant with capitals", quota(tenant="Search"), "spec.tenant",
            f"'Search' {_LABEL}", "should match"),
    Refused("a tenant with a slash", quota(tenant="a/b"), "spec.tenant",
            f"'a/b' {_LABEL}", "should match"),
    Refused("a header value with a line break", quota(identity={"headerValue": "a\nb"}), "spec.identity.headerValue",
            "'a\\nb' may have printable ASCII and single spaces inside only", "should match"),
    Refused("an API key header that is none", pool(sidecar__identity={"apiKeyHeader": "x key"}),
            "spec.sidecar.identity.apiKeyHeader", "'x key' must be the name of an HTTP header", "should match"),
    Refused("a label that is none", pool(selector={"matchLabels": {"app": "-"}}), "spec.selector.matchLabels.app",
            "'-' may have letters, digits and -_. only, with a letter or digit at both ends", "should match"),
    Refused("a number where text belongs", quota(tier=7), "spec.tier", "7 must be text: put it in quotes",
            "must be of type string"),
    Refused("text where a list belongs", pool(tiers="gold"), "spec.tiers", "must be a list",
            "must be of type array"),
    Refused("text where an object belongs", quota(modelPoolRef="llama"), "spec.modelPoolRef",
            "must be an object with fields", "must be of type object"),
    Refused("a long text in a message", quota(tenant="A" * 63), "spec.tenant",
            f"'{'A' * 58}… {_LABEL}", "should match"),
    Refused("text where a map belongs", pool(selector={"matchLabels": "app=llama"}), "spec.selector.matchLabels",
            "must be an object with fields", "must be of type object"),
    Refused("two tiers of one name", pool(tiers=[{"name": "gold"}, {"name": "free"}, {"name": "gold"}]),
            "spec.tiers", "name gold occurs more than once: keep one", "Duplicate value"),
    Refused("one length twice in the mix", pool(
        workload={"contextMix": [{"contextTokens": 1, "weight": 1}, {"contextTokens": 1, "weight": 2}]}
    ), "spec.workload.contextMix", "contextTokens 1 occurs more than once: keep one", "Duplicate value"),
    Refused("too long a name", quota(tenant="a" * 64), "spec.tenant", "String should have at most 63 characters",
            "may not be more than 63 bytes"),
    Refused("no context at all", quota(maxContextTokens=0), "spec.maxContextTokens", "0 must be at least 1",
            "should be greater than or equal to 1"),
)  # fmt: skip

BROKEN_UPDATES: tuple[RefusedUpdate, ...] = (
    RefusedUpdate("another tenant", quota(), quota(tenant="batch"), "spec.tenant",
                  "tenant cannot be changed: create a new TenantQuota and delete this one"),
    RefusedUpdate("another pool", quota(), quota(modelPoolRef={"name": "qwen"}), "spec.modelPoolRef",
                  "modelPoolRef cannot be changed: create a new TenantQuota for the other pool and delete this one"),
)  # fmt: skip

ACCEPTED_UPDATES: tuple[tuple[str, Json, Json], ...] = (
    ("all that may be changed in a quota", quota(), quota(tier="gold", kv={"hard": {"percent": 5}}, scope="Pool")),
    ("a pool on another card", pool(), pool(gpu__memory="40Gi", tiers=[{"name": "gold"}])),
)
