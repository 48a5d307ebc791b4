"""`kvquota check`: what a cluster would say, said before, with file and line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvquota_cli.__main__ import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KEY = "kvq-" + "0123456789abcdef" * 4


def pool(**changes: str) -> str:
    parts = {"name": "pool", "kv": "{percent: 50}", "tiers": "[]", "memory": "24Gi"} | changes
    return (
        "apiVersion: kvquota.dev/v1alpha1\nkind: ModelPool\n"
        f"metadata: {{name: {parts['name']}}}\n"
        "spec:\n  selector: {matchLabels: {app: x}}\n"
        "  model: {name: m, config: {preset: llama-3.2-1b}, maxModelLen: 4096}\n"
        f"  engine: {{type: vLLM}}\n  gpu: {{memory: {parts['memory']}}}\n"
        f"  memory: {{kvPool: {parts['kv']}}}\n  tiers: {parts['tiers']}\n---\n"
    )


def quota(name: str, tenant: str, secret: str = "", extra: str = "") -> str:
    identity = f"  identity: {{apiKeys: [{{secretRef: {{name: {secret}, key: key}}}}]}}\n" if secret else ""
    return (
        "apiVersion: kvquota.dev/v1alpha1\nkind: TenantQuota\n"
        f"metadata: {{name: {name}}}\nspec:\n  tenant: {tenant}\n"
        f"  modelPoolRef: {{name: pool}}\n{extra}{identity}---\n"
    )


def secret(name: str, key: str = KEY, kind: str = "kvquota.dev/api-key") -> str:
    return f"apiVersion: v1\nkind: Secret\ntype: {kind}\nmetadata: {{name: {name}}}\nstringData: {{key: {key}}}\n---\n"


def trusting(header: str = "x-tenant", api_key_header: str = "Authorization") -> str:
    identity = (
        f"  sidecar:\n    identity:\n      apiKeyHeader: {api_key_header}\n"
        "      jwt: {issuer: i, audience: a, keysRef: {configMap: {name: keys, key: set}}}\n"
        f"      trustedHeader: {{name: {header}, sharedSecretRef: {{name: s, key: key}}}}\n---\n"
    )
    return pool().replace("---\n", identity)


def key_set(text: str) -> str:
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: keys}}\ndata: {{set: '{text}'}}\n---\n"


JWKS = '{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "' + "A" * 43 + '"}]}'


def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], *texts: str) -> tuple[int, list[str]]:
    for index, text in enumerate(texts):
        (tmp_path / f"{index}.yaml").write_text(text)
    code = main(["check", str(tmp_path)])
    return code, capsys.readouterr().out.replace(f"{tmp_path}/", "").splitlines()


def test_who_asks_for_what_nothing_acts_upon_is_warned_at_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asking = pool().replace("engine: {type: vLLM}", "engine: {type: vLLM, plugin: Measure}")
    code, lines = run(tmp_path, capsys, asking + quota("q", "t", extra="  degradation: {allowTruncation: true}\n"))
    assert code == 0
    assert [line for line in lines if "not acted upon" in line] == [
        "0.yaml:7: warning: ModelPool default/pool: spec.engine.plugin: not acted upon yet: nothing runs inside the"
        " engine yet, quotas hold in the sidecar, by its own count",
        "0.yaml:18: warning: TenantQuota default/q: spec.degradation.allowTruncation: not acted upon yet: no request"
        " is shortened yet",
    ]


def test_the_examples_are_good(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(EXAMPLES)]) == 0
    assert capsys.readouterr().out == "all good in 2 ModelPools, 3 Secrets, 1 ConfigMap, 2 TenantQuotas\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(
            pool() + quota("q", "t", extra="  kv: {hard: {percent: 60, tokens: 5}}\n"),
            "0.yaml:18: error: TenantQuota default/q: spec.kv.hard: set exactly one of percent, bytes or tokens",
            id="two members of a union",
        ),
        pytest.param(
            pool() + quota("q", "t", extra="  modelPoolref: {name: pool}\n"),
            "0.yaml:18: error: TenantQuota default/q: spec.modelPoolref: is not a field here; did you mean",
            id="a slip in a field",
        ),
        pytest.param(
            pool(kv="{percent: 95}"),
            "0.yaml:1: error: ModelPool default/pool: the parts of one card sum to",
            id="a partition that does not fit",
        ),
        pytest.param(
            pool() + quota("q", "t", extra="  tier: gold\n"),
            "0.yaml:18: error: TenantQuota default/q: spec.tier: ModelPool pool has no tier gold (it has: none)",
            id="a tier that the pool does not have",
        ),
        pytest.param(
            pool() + quota("q", "t") + quota("r", "t"),
            "0.yaml:19: error: TenantQuota default/r: tenant t already has a share of ModelPool pool by the older",
            id="two quotas for one tenant",
        ),
        pytest.param(
            pool() + quota("q", "t", "s") + quota("r", "u", "s") + secret("s"),
            "0.yaml:20: error: TenantQuota default/r: the API key in Secret s, key key, is already that of",
            id="one key for two tenants",
        ),
        pytest.param(
            pool() + quota("q", "t", "s") + secret("s", key="kvq-0123456789abcdef"),
            "0.yaml:12: error: TenantQuota default/q: the API key in Secret s, key key, has at most 64 bits",
            id="a weak key",
        ),
        pytest.param(
            pool() + quota("q", "t", "s") + secret("s", kind="Opaque"),
            "0.yaml:12: error: TenantQuota default/q: Secret s has type Opaque",
            id="a Secret of another type",
        ),
        pytest.param(
            secret("s").replace("stringData", "data"),
            "0.yaml:5: error: Secret default/s: data.key: not base64",
            id="bad base64",
        ),
        pytest.param(
            trusting() + secret("s") + key_set("{}"),
            "0.yaml:14: error: ModelPool default/pool: spec.sidecar.identity.jwt.keysRef: the set of keys is not used:"
            " it is no JSON Web Key Set",
            id="a set of keys that is none",
        ),
        pytest.param(
            trusting(header="Authorization", api_key_header="X-Key") + secret("s") + key_set(JWKS),
            "0.yaml:15: error: ModelPool default/pool: spec.sidecar.identity.trustedHeader.name: the header"
            " Authorization means something else here",
            id="a trusted header that means something else",
        ),
        pytest.param("a: [", "0.yaml:1: error: not valid YAML: ", id="no YAML"),
    ],
)
def test_what_is_wrong_is_said_once_at_its_line_and_ends_with_1(
    text: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = run(tmp_path, capsys, text)
    assert code == 1
    assert lines[0].startswith(line)
    assert len(lines) == 2
    assert lines[1].startswith("1 error")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(
            quota("q", "t"),
            "0.yaml:6: warning: TenantQuota default/q: spec.modelPoolRef.name: no ModelPool pool of namespace default",
            id="a pool that is elsewhere",
        ),
        pytest.param(
            pool().replace(
                "{preset: llama-3.2-1b}", "{inline: {architectures: [NovelForCausalLM], model_type: novel}}"
            ),
            "0.yaml:1: warning: ModelPool default/pool: architectures: 'NovelForCausalLM' is not known to the planner",
            id="a model that only its engine knows",
        ),
        pytest.param(
            pool().replace("{preset: llama-3.2-1b}", "{configMapRef: {name: configs, key: config.json}}"),
            "0.yaml:6: warning: ModelPool default/pool: spec.model.config.configMapRef: ConfigMap configs, or its key"
            " config.json, is not there",
            id="a config that is elsewhere",
        ),
        pytest.param(
            pool(
                tiers="[]\n  degradation: {fallback: {enterPercent: 95, exitPercent: 85, modelPoolRef: {name: small}}}"
            ),
            "0.yaml:11: warning: ModelPool default/pool: spec.degradation.fallback.modelPoolRef.name: no ModelPool"
            " small of namespace default is among these files: it must be in the cluster",
            id="a smaller model that is elsewhere",
        ),
        pytest.param(
            pool() + quota("q", "t", "s"),
            "0.yaml:12: warning: TenantQuota default/q: Secret s does not exist",
            id="a Secret that is elsewhere",
        ),
        pytest.param(
            trusting() + secret("s"),
            "0.yaml:14: warning: ModelPool default/pool: spec.sidecar.identity.jwt.keysRef: ConfigMap keys does not"
            " exist",
            id="a set of keys that is elsewhere",
        ),
        pytest.param(
            pool()
            + quota("q", "t", extra="  kv: {soft: {percent: 60}}\n")
            + quota("r", "u", extra="  kv: {soft: {percent: 20}, hard: {percent: 30}}\n").replace("20", "30"),
            "0.yaml:12: warning: TenantQuota default/q: the softs of the tenants of ModelPool pool sum to",
            id="softs that are scaled down",
        ),
    ],
)
def test_what_can_be_applied_all_the_same_is_a_warning_and_ends_with_0(
    text: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = run(tmp_path, capsys, text)
    assert (code, [each[: len(line)] for each in lines if each.startswith(line)]) == (0, [line])
    assert "error" not in lines[-1]


def test_what_depends_on_a_wrong_object_is_not_wrong_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = run(
        tmp_path, capsys, pool().replace("vLLM", "vllm") + quota("q", "t"), pool(name="b", kv="{percent: 95}")
    )
    assert code == 1
    assert [line.split(": ")[2] for line in lines[:-1]] == ["ModelPool default/pool", "ModelPool default/b"]


def test_objects_that_mean_nothing_here_are_counted_so_that_a_slip_is_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n---\n"
    assert run(tmp_path, capsys, deployment + pool()) == (
        0,
        ["all good in 1 ModelPool; passed over 1 Deployment (apps/v1)"],
    )


def test_the_same_as_json_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(pool() + quota("q", "t", extra="  tier: 7\n"))
    assert main(["check", str(file), "-o", "json", "-n", "ns"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "findings": [
            {
                "file": str(file),
                "line": 18,
                "severity": "error",
                "object": "TenantQuota ns/q",
                "field": "spec.tier",
                "message": "7 must be text: put it in quotes",
            }
        ],
        "checked": {"ModelPool": 1, "TenantQuota": 1},
        "passedOver": {},
    }


def test_files_without_anything_of_ours_are_a_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n")
    assert main(["check", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(
        "kvquota: no ModelPool, TenantQuota, Secret or ConfigMap is in these files"
    )


def test_a_pool_that_is_not_among_pools_of_its_namespace_is_an_error_with_the_nearest_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = run(tmp_path, capsys, pool(name="pools") + quota("q", "t"))
    assert (code, lines[0].partition("name: ")[2]) == (
        1,
        "no ModelPool pool of namespace default is among these files; did you mean pools?",
    )


def test_a_kind_that_is_none_is_not_counted_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = run(tmp_path, capsys, quota("q", "t").replace("TenantQuota", "TenantQuotas"))
    assert (code, lines[-1]) == (1, "1 error; no object could be checked")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(
            pool().replace("kind: ModelPool", "kind: ModelPool\nspce: {}"),
            "0.yaml:3: error: ModelPool default/pool: spce: is not a field here; did you mean spec?",
            id="a field of the object",
        ),
        pytest.param(
            pool().replace("maxModelLen", "maxModellen"),
            "0.yaml:6: error: ModelPool default/pool: spec.model.maxModellen: is not a field here; did you mean"
            " maxModelLen?",
            id="a field of the model",
        ),
        pytest.param(
            pool(tiers="[{name: gold, kv: {sotf: {percent: 1}}}]"),
            "0.yaml:10: error: ModelPool default/pool: spec.tiers[0].kv.sotf: is not a field here; did you mean soft?",
            id="a field in a list",
        ),
        pytest.param(
            pool().replace("{type: vLLM}", "{type: vLLM, speculation: {token: 1}}"),
            "0.yaml:7: error: ModelPool default/pool: spec.engine.speculation.token: is not a field here; did you mean"
            " tokens?",
            id="a field of speculation",
        ),
    ],
)
def test_a_misspelt_field_is_found_with_the_one_that_was_meant(
    text: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, capsys, text) == (1, [line, "1 error in 1 ModelPool"])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(
            pool(tiers=f"[{{name: gold, priority: {'9' * 5000}}}]"),
            f"0.yaml:10: error: '{'9' * 58}… is not a number that an API server takes",
            id="a number of 5,000 digits",
        ),
        pytest.param(
            pool(tiers="[{name: gold, priority: .inf}]"),
            "0.yaml:10: error: .inf is not a number that an API server takes",
            id="a number without an end",
        ),
        pytest.param(
            pool().replace(
                "{name: m, config: {preset: llama-3.2-1b}", "{name: m, config: {inline: " + "[" * 90 + "]" * 90 + "}"
            ),
            "0.yaml:6: error: too large: more than 200000 nodes or 64 levels in one document",
            id="a config of 90 levels",
        ),
        pytest.param(
            pool().replace("gpu: {memory: 24Gi}", "gpu: {memory: 24Gi}\n  gpu: {memory: 80Gi}"),
            "0.yaml:9: error: gpu is written twice, first in line 8: keep one of them",
            id="a field twice",
        ),
        pytest.param(
            quota("q", "t").replace("{name: q}", "{name: q, namespace: A/B}"),
            "0.yaml:3: error: TenantQuota A/B/q: metadata.namespace: 'A/B' may have lower-case letters, digits and -"
            " only, with a letter or digit at both ends",
            id="a namespace that is none",
        ),
    ],
)
def test_bad_input_is_an_error_with_its_line_never_a_traceback(
    text: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = run(tmp_path, capsys, text)
    assert (code, lines[0]) == (1, line)


def test_a_hyphen_is_the_standard_input() -> None:
    given = pool(tiers="[{name: gold, prio: 1}]")
    argv = [sys.executable, "-m", "kvquota_cli", "check", "-"]
    done = subprocess.run(argv, input=given, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (
        1,
        [
            "/dev/stdin:10: error: ModelPool default/pool: spec.tiers[0].prio: is not a field here; did you mean"
            " priority?",
            "1 error in 1 ModelPool",
        ],
    )


def config_map(key: str = "config.json", text: str = "{}") -> str:
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: configs}}\ndata: {{{key}: '{text}'}}\n---\n"


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(config_map(key="other.json"), id="without that key"),
        pytest.param(config_map(text='{"architectures": 7}'), id="with a config that is none"),
    ],
)
def test_a_config_map_that_is_here_must_hold_the_config(
    given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = pool().replace("{preset: llama-3.2-1b}", "{configMapRef: {name: configs, key: config.json}}")
    code, lines = run(tmp_path, capsys, named + given)
    assert (code, lines[0].split(": ")[1:3]) == (1, ["error", "ModelPool default/pool"])


def test_a_smaller_model_that_is_misspelt_is_an_error_with_the_one_that_was_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    falls_back = "[]\n  degradation: {fallback: {enterPercent: 95, exitPercent: 85, modelPoolRef: {name: smal}}}"
    code, lines = run(tmp_path, capsys, pool(tiers=falls_back), pool(name="small"))
    assert code == 1
    assert [line.partition("name: ")[2] for line in lines if "error" in line][:1] == [
        "no ModelPool smal of namespace default is among these files; did you mean small?"
    ]


def test_a_folder_that_is_named_like_a_manifest_is_a_warning_also_where_nothing_else_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more.yaml").mkdir()
    warning = "more.yaml:1: warning: is a folder, and sub-folders are not read: name it by itself"
    assert main(["check", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path}/{warning}\nkvquota: no ModelPool, ")
    assert run(tmp_path, capsys, pool()) == (0, [warning, "1 warning in 1 ModelPool"])
