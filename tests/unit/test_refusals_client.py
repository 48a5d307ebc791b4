"""Refusals as the OpenAI client library understands them."""

from __future__ import annotations

import httpx2
import openai
import pytest

from kvquota_sidecar.refusals import Code, Refusal, refuse
from kvquota_sidecar.refusals.headers import refused_fields
from kvquota_sidecar.refusals.wire import body, final_event

ROUTE = "/v1/chat/completions"
CHUNK = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[]}\n\n'


def client(*answers: httpx2.Response, retries: int = 0) -> tuple[openai.OpenAI, list[httpx2.Request]]:
    """A client that is given these answers in turn, and what it has sent."""
    left, sent = list(answers), []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return left.pop(0)

    transport = httpx2.Client(transport=httpx2.MockTransport(answer))
    made = openai.OpenAI(api_key="k", base_url="http://pod/v1", http_client=transport, max_retries=retries)
    return made, sent


def answered(refusal: Refusal) -> httpx2.Response:
    lines = refused_fields(refusal, None).decode().removesuffix("\r\n").split("\r\n")
    headers = [*(line.split(": ", 1) for line in lines), ("content-type", "application/json")]
    return httpx2.Response(refusal.status, headers=headers, content=body(refusal, ROUTE))


@pytest.mark.parametrize("code", [code for code in Code if refuse(code).status != 408])
def test_the_client_raises_code_and_message(code: Code) -> None:
    refusal = refuse(code, param="messages")
    made, _ = client(answered(refusal))
    with pytest.raises(openai.APIStatusError) as error:
        made.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    assert (error.value.status_code, error.value.code, error.value.param) == (refusal.status, code.value, "messages")
    assert refusal.message in str(error.value)


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        pytest.param(Code.KV_POOL_CONTENDED, 2, id="what can be retried is"),
        pytest.param(Code.REQUEST_EXCEEDS_KV_QUOTA, 1, id="what can never fit is not"),
    ],
)
def test_the_client_retries_what_can_help(code: Code, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    made, sent = client(answered(refuse(code)), answered(refuse(code)), retries=1)
    with pytest.raises(openai.APIStatusError):
        made.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    assert len(sent) == calls


def test_a_final_event_is_an_error_of_the_stream_and_not_its_end() -> None:
    stream = CHUNK + final_event(refuse(Code.TENANT_KV_QUOTA_EXCEEDED, "Grown."), ROUTE)
    made, _ = client(httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream))
    seen: list[object] = []
    with pytest.raises(openai.APIError, match="Grown") as error:
        seen.extend(made.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True))
    assert error.value.code == "tenant_kv_quota_exceeded"
