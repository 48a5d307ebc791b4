"""Routes, refusals of the edge, and the phases of leaving."""

import json

import pytest

from kvquota_sidecar.proxy.blamed import blamed
from kvquota_sidecar.proxy.draining import Drain, Phase
from kvquota_sidecar.proxy.head import Fault
from kvquota_sidecar.proxy.identity import Failure
from kvquota_sidecar.proxy.refusing import fault_refusal, identity_refusal, refusal_answer
from kvquota_sidecar.proxy.request_ids import Name
from kvquota_sidecar.proxy.routes import PATHS, Purpose, find_route

ROUTES: dict[tuple[str, str], Purpose | None] = {
    ("POST", "/v1/chat/completions"): "Generate",
    ("POST", "/v1/completions"): "Generate",
    ("POST", "/v1/messages"): "Generate",
    ("POST", "/v1/responses"): "Generate",
    ("POST", "/v1/chat/completions/batch"): "Generate",
    ("POST", "/v1/embeddings"): "Generate",
    ("POST", "/pooling"): "Generate",
    ("POST", "/classify"): "Generate",
    ("POST", "/score"): "Generate",
    ("POST", "/v1/score"): "Generate",
    ("POST", "/rerank"): "Generate",
    ("POST", "/v1/rerank"): "Generate",
    ("POST", "/v2/rerank"): "Generate",
    ("POST", "/tokenize"): "Read",
    ("POST", "/detokenize"): "Read",
    ("POST", "/v1/messages/count_tokens"): "Read",
    ("GET", "/v1/models"): "Read",
    ("GET", "/v1/usage"): "OwnUsage",
    ("GET", "/health"): "Health",
    ("GET", "/v1/chat/completions"): None,
    ("post", "/v1/completions"): None,
    ("HEAD", "/health"): "Health",
    ("HEAD", "/v1/models"): "Read",
    ("HEAD", "/v1/usage"): "OwnUsage",
    ("HEAD", "/v1/completions"): None,
    ("head", "/health"): None,
    ("POST", "/v1/completions/"): None,
    ("POST", "/V1/completions"): None,
    ("POST", "/v1/%63ompletions"): None,
    ("POST", "/v1/x/../completions"): None,
    ("GET", "/v1/embeddings"): None,
    ("GET", "/tokenizer_info"): None,
    ("POST", "/v1/chat/completions/render"): None,
    ("POST", "/v1/audio/transcriptions"): None,
    ("POST", "/v2/embed"): None,
    ("POST", "/v1/load_lora_adapter"): None,
    ("POST", "/invocations"): None,
    ("POST", "/generative_scoring"): None,
    ("POST", "/inference/v1/generate"): None,
    ("POST", "/pause"): None,
    ("POST", "/abort_requests"): None,
    ("POST", "/reset_prefix_cache"): None,
    ("GET", "/v1/responses/resp_1"): None,
    ("POST", "/v1/responses/resp_1/cancel"): None,
    ("GET", "/metrics"): None,
    ("GET", "/openapi.json"): None,
    ("GET", "/"): None,
}


@pytest.mark.parametrize(("line", "purpose"), ROUTES.items(), ids=[" ".join(line) for line in ROUTES])
def test_only_the_named_routes_are_open(line: tuple[str, str], purpose: Purpose | None) -> None:
    route = find_route(*line)
    assert (None if route is None else route.purpose) == purpose
    assert (line[1] in PATHS) or purpose is None


FAULTS = {
    400: "malformed_request",
    408: "request_timeout",
    413: "request_too_large",
    415: "unsupported_encoding",
    417: "expectation_failed",
    431: "headers_too_large",
    503: "receiving_too_much",
}


@pytest.mark.parametrize(("status", "code"), FAULTS.items())
def test_a_fault_keeps_its_status_and_its_sentence(status: int, code: str) -> None:
    refusal = fault_refusal(Fault(status, "Do this instead."))
    assert (refusal.status, refusal.code.value, refusal.message) == (status, code, "Do this instead.")


def test_who_is_unknown_and_who_contradicts_himself_are_told_apart() -> None:
    assert [identity_refusal(failure).status for failure in (Failure.UNKNOWN, Failure.CONTRADICTION)] == [401, 400]


def test_a_refusal_speaks_the_words_of_the_route() -> None:
    refusal = identity_refusal(Failure.UNKNOWN)
    name = Name("ours-1", "theirs")
    openai, anthropic = (refusal_answer(refusal, path, name) for path in ("/v1/completions", "/v1/messages"))
    assert json.loads(openai.body)["error"]["code"] == "unknown_tenant"
    assert json.loads(anthropic.body)["type"] == "error"
    told = b"x-kvquota-code: unknown_tenant\r\nx-should-retry: false\r\n"
    assert openai.fields == told + b"www-authenticate: Bearer\r\nx-request-id: theirs\r\n"


BLAMED = {
    "a field that a route reads": ("max_tokens", "max_tokens"),
    "a field inside another one": ("messages[2].content", "messages"),
    "a field that is not supported": ("background", "background"),
    "a name that a client has chosen": ("my password is", None),
    "such a name inside a field": ("messages.my password is", "messages"),
    "no field": (None, None),
    "an empty name": ("", None),
}


@pytest.mark.parametrize(("param", "told"), BLAMED.values(), ids=BLAMED)
def test_the_log_names_fields_of_ours_only(param: str | None, told: str | None) -> None:
    assert blamed(param) == told


PHASES: dict[str, tuple[float, int, Phase]] = {
    "at once, whatever runs": (0.0, 0, "LameDuck"),
    "just before the lame duck ends": (2.9, 5, "LameDuck"),
    "after it, with something running": (3.0, 1, "Refusing"),
    "after it, with nothing running": (3.0, 0, "Over"),
    "just before the limit": (49.9, 1, "Refusing"),
    "at the limit": (50.0, 1, "Over"),
}


@pytest.mark.parametrize(("passed", "running", "phase"), PHASES.values(), ids=PHASES)
def test_the_phases_of_leaving(passed: float, running: int, phase: Phase) -> None:
    drain = Drain(lame_duck_seconds=3.0, limit_seconds=50.0)
    assert drain.phase(100.0 + passed, running) == "Serving"
    drain.start(100.0)
    drain.start(140.0)
    assert drain.phase(100.0 + passed, running) == phase


def test_a_drain_that_no_signal_follows_is_taken_back() -> None:
    drain = Drain(lame_duck_seconds=3.0, limit_seconds=50.0)
    assert not drain.lapse(1e9)
    drain.start(100.0)
    assert [drain.lapse(now) for now in (100.0, 179.9)] == [False, False]
    assert drain.phase(179.9, 0) == "Over"
    assert [drain.lapse(180.0), drain.lapse(180.0)] == [True, False]
    assert drain.phase(180.0, 0) == "Serving"
    drain.start(200.0)
    assert drain.phase(203.0, 1) == "Refusing"


def test_a_drain_that_a_signal_follows_stays() -> None:
    drain = Drain(lame_duck_seconds=3.0, limit_seconds=50.0)
    drain.start(100.0)
    drain.start(150.0, final=True)
    drain.start(160.0)
    assert drain.phase(150.0, 1) == "Over"  # the signal does not start the clock again
    assert not drain.lapse(1e9)


def test_a_limit_below_the_lame_duck_wins() -> None:
    drain = Drain(lame_duck_seconds=3.0, limit_seconds=1.0)
    drain.start(0.0)
    assert drain.phase(1.0, 1) == "Over"
