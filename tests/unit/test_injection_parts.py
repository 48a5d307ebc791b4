"""The parts of injection: who asks, command lines, flags of each engine, patches and the protocol of admission."""

import base64
import json
from typing import Any

import pytest

from injection_builders import pod, pool, target
from kvquota_api.pod_config import KvPlan
from kvquota_operator.injection.admission import ReviewError, answer, read_review
from kvquota_operator.injection.asking import asks, selecting
from kvquota_operator.injection.commands import is_shell_string, option
from kvquota_operator.injection.flags import engine_flags, moved_to, not_settable
from kvquota_operator.injection.outcomes import Allowed, Refused
from kvquota_operator.injection.patching import patch
from kvquota_operator.reading.objects import read_pool
from kvquota_operator.reconcile.manifests import is_config_map_name


@pytest.mark.parametrize(
    ("metadata", "asked"),
    [
        pytest.param({"labels": {"kvquota.dev/inject": "true"}}, True, id="the label asks"),
        pytest.param({"labels": {"kvquota.dev/inject": "false"}}, False, id="another value does not"),
        pytest.param({"labels": {"app": "llama"}}, False, id="another label does not"),
        pytest.param({"annotations": {"kvquota.dev/inject": "true"}}, False, id="an annotation does not"),
        pytest.param({}, False, id="no labels"),
    ],
)
def test_who_asks(metadata: dict[str, Any], asked: bool) -> None:
    assert asks({"metadata": metadata}) is asked


def stored(name: str, created: str, selector: dict[str, Any], **broken: Any) -> Any:
    spec = {**pool().spec.as_written(), "selector": selector, **broken}
    metadata = {"name": name, "namespace": "inference", "creationTimestamp": created}
    return read_pool({"apiVersion": "kvquota.dev/v1alpha1", "kind": "ModelPool", "metadata": metadata, "spec": spec})


OLD, NEW = "2026-10-01T00:00:00Z", "2026-10-02T00:00:00Z"
LLAMA = {"matchLabels": {"app": "llama"}}


@pytest.mark.parametrize(
    ("pools", "names"),
    [
        pytest.param([stored("b", NEW, LLAMA), stored("a", OLD, LLAMA)], ["a", "b"], id="the oldest comes first"),
        pytest.param([stored("a", OLD, {"matchLabels": {"app": "other"}})], [], id="another selector"),
        pytest.param([stored("a", OLD, LLAMA, gpu=7)], ["a"], id="a pool that does not parse selects by its labels"),
        pytest.param(
            [stored("a", OLD, {"matchLabels": {"app": "other"}}, gpu=7)], [], id="and by other labels it does not"
        ),
        pytest.param([stored("a", OLD, {}, gpu=7)], [], id="a pool that does not parse and has no labels selects none"),
    ],
)
def test_which_pools_select_a_pod(pools: list[Any], names: list[str]) -> None:
    assert [each.key.name for each in selecting({"app": "llama"}, pools)] == names


@pytest.mark.parametrize(
    ("words", "lost"),
    [
        pytest.param(["sh", "-c", "vllm serve m"], True, id="sh -c"),
        pytest.param(["/bin/bash", "-ec", "vllm serve m"], True, id="with another option in the same word"),
        pytest.param(["bash", "-o", "pipefail", "-e", "-c", "vllm serve m"], True, id="behind other options"),
        pytest.param(["tini", "--", "sh", "-c", "vllm serve m"], True, id="behind an init"),
        pytest.param(["-c", "vllm serve m"], True, id="of an image whose entry point is a shell"),
        pytest.param(["sh", "-c"], True, id="without the string"),
        pytest.param(["sh", "-c", 'vllm serve m "$@"'], True, id="handed on, without a word for $0"),
        pytest.param(["sh", "-c", 'vllm serve m "$@"', "sh"], False, id="handed on"),
        pytest.param(["bash", "run.sh", "-c", "x"], False, id="a script with an option of its own"),
        pytest.param(["bash"], False, id="a shell alone"),
        pytest.param(["bash", "--login"], False, id="a long option"),
        pytest.param(["-c", "4096", "--port", "8080"], False, id="llama.cpp's context"),
        pytest.param(["vllm", "serve", "m"], False, id="no shell"),
        pytest.param([], False, id="nothing"),
    ],
)
def test_which_command_lines_lose_what_is_appended(words: list[str], lost: bool) -> None:
    assert is_shell_string(words) is lost


def test_a_word_as_long_as_a_pod_is_read_once() -> None:
    assert not is_shell_string(["sh", "-" + "c" * 1_000_000 + "!", "vllm serve"])


@pytest.mark.parametrize(
    ("words", "value"),
    [
        pytest.param(["--port", "1", "--port=2"], "2", id="the last one counts"),
        pytest.param(["--port=1", "--port", "2"], "2", id="in either way of writing"),
        pytest.param(["--port"], None, id="without a value"),
        pytest.param(["--port", "$(PORT)"], None, id="a variable"),
        pytest.param(["--portal", "1"], None, id="another option"),
    ],
)
def test_the_value_of_an_option(words: list[str], value: str | None) -> None:
    assert option(words, "--port") == value


SMALL = {"model__maxModelLen": 4096, "engine__version": None, "engine__plugin": "Off"}
SGLANG = {**SMALL, "engine__type": "SGLang"}
TENSORRT = {**SMALL, "engine__type": "TensorRTLLM", "engine__blockSize": 32}
LLAMACPP = {
    **SMALL,
    "engine__type": "LlamaCpp",
    "engine__blockSize": None,
    "engine__maxNumSeqs": None,
    "engine__maxNumBatchedTokens": 512,
    "engine__slots": 4,
    "memory__kvPool": {"remainder": {}},
}


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        pytest.param(
            SGLANG,
            "--max-total-tokens {tokens} --page-size 16 --max-running-requests 256 --chunked-prefill-size 8192"
            " --context-length 4096 --enable-metrics",
            id="SGLang",
        ),
        pytest.param(LLAMACPP, "--ctx-size 16384 --parallel 4 --ubatch-size 512 --metrics --slots", id="llama.cpp"),
        pytest.param(
            {**LLAMACPP, "engine__unifiedKvCache": True},
            "--ctx-size 4096 --parallel 4 --kv-unified --ubatch-size 512 --metrics --slots",
            id="llama.cpp with one cache for all slots",
        ),
        pytest.param(
            TENSORRT, "--max_batch_size 256 --max_num_tokens 8192 --max_seq_len 4096", id="TensorRT-LLM, no KV memory"
        ),
        pytest.param({**SMALL, "engine__type": "OpenAI"}, "", id="an engine of which nothing is known"),
    ],
)
def test_the_flags_of_each_engine(changes: dict[str, Any], flags: str) -> None:
    given = target(**changes)
    tokens = given.kv.cap_blocks * given.kv.block_tokens if given.kv else 0
    assert " ".join(engine_flags(given.pool.spec, given.kv)) == flags.format(tokens=tokens)


@pytest.mark.parametrize("kind", ["vLLM", "SGLang", "LlamaCpp", "TensorRTLLM"])
def test_without_a_plan_the_size_is_left_to_the_engine(kind: str) -> None:
    spec = pool(engine={"type": kind}, model__maxModelLen=None).spec
    sizes = {"--kv-cache-memory-bytes", "--max-total-tokens", "--ctx-size"}
    assert sizes.isdisjoint(engine_flags(spec, None))
    assert not_settable(spec, None) is None
    assert moved_to(spec, 18000) == ("--host", "127.0.0.1", "--port", "18000")


def test_what_no_argument_of_tensorrt_llm_says_is_said_to_a_person() -> None:
    given = target(**TENSORRT)
    assert isinstance(given.kv, KvPlan)
    assert not_settable(given.pool.spec, given.kv) == (
        "no argument of trtllm-serve sets the size of the KV cache: put kv_cache_config: {max_tokens:"
        f" {given.kv.cap_blocks * 32}}} into the file of --extra_llm_api_options"
    )


@pytest.mark.parametrize(
    ("before", "after", "operations"),
    [
        pytest.param({"a": {"b": [1]}}, {"a": {"b": [1]}}, [], id="equal documents"),
        pytest.param({}, {"a": 1}, [{"op": "add", "path": "/a", "value": 1}], id="what is new"),
        pytest.param(
            {"a": {"b": [1], "c": 2}},
            {"a": {"b": [1, 2], "c": 2}},
            [{"op": "replace", "path": "/a/b", "value": [1, 2]}],
            id="a list as a whole",
        ),
        pytest.param({"a": 1, "b": 2}, {"b": 2}, [{"op": "remove", "path": "/a"}], id="what is gone"),
        pytest.param({"a": None}, {"a": {}}, [{"op": "replace", "path": "/a", "value": {}}], id="null is a value"),
        pytest.param({}, {"k/v~": 1}, [{"op": "add", "path": "/k~1v~0", "value": 1}], id="names with / and ~"),
    ],
)
def test_patches(before: dict[str, Any], after: dict[str, Any], operations: list[dict[str, Any]]) -> None:
    assert list(patch(before, after)) == operations


def review(**request: Any) -> dict[str, Any]:
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


ASKED = review(uid="u-1", namespace="inference", object=pod())


def response(of: dict[str, Any]) -> dict[str, Any]:
    assert (of["apiVersion"], of["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    found: dict[str, Any] = of["response"]
    return found


def test_a_pod_that_stays_as_it_is_has_no_patch() -> None:
    asked = read_review(ASKED)
    assert response(answer(asked, Allowed(asked.pod))) == {"uid": "u-1", "allowed": True}


def test_a_changed_pod_has_a_patch_and_may_have_warnings() -> None:
    asked = read_review(ASKED)
    found = response(answer(asked, Allowed({**asked.pod, "spec": {}}, ("w" * 300,))))
    operations = json.loads(base64.b64decode(found.pop("patch")))
    assert operations == [{"op": "remove", "path": "/spec/containers"}]
    assert found == {"uid": "u-1", "allowed": True, "patchType": "JSONPatch", "warnings": ["w" * 250]}


def test_a_refusal_has_its_sentence() -> None:
    assert response(answer(read_review(ASKED), Refused("no"))) == {
        "uid": "u-1",
        "allowed": False,
        "status": {"code": 422, "reason": "Invalid", "message": "no"},
    }


def test_what_passes_by_itself_is_refused_so_that_clients_wait_and_try_again() -> None:
    assert response(answer(read_review(ASKED), Refused("not yet", retry_seconds=1)))["status"] == {
        "code": 429,
        "reason": "TooManyRequests",
        "message": "not yet",
        "details": {"retryAfterSeconds": 1},
    }


def test_each_question_names_a_config_map_of_its_own() -> None:
    again, elsewhere = review(**{**ASKED["request"], "uid": "u-2"}), review(uid="u-1", object=pod())
    names = [read_review(each).config_map for each in (ASKED, ASKED, again, elsewhere)]
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert all(is_config_map_name(name) for name in names)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param([], "no AdmissionReview with a request", id="no object"),
        pytest.param({"request": None}, "no AdmissionReview with a request", id="no request"),
        pytest.param(review(object=pod()), "no AdmissionReview with a request", id="no uid"),
        pytest.param(review(uid="u", object=None), "the request has no pod", id="nothing is created"),
        pytest.param(review(uid="u", object={"metadata": {}}), "the request has no pod", id="no pod"),
    ],
)
def test_what_is_no_question_about_a_pod(body: object, says: str) -> None:
    with pytest.raises(ReviewError, match=says):
        read_review(body)
