import pytest

from kvquota_sidecar.proxy.stream_ends import marks_end

CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"


@pytest.mark.parametrize(
    ("engine", "marked"),
    [
        pytest.param("vLLM", {CHAT, TEXT, MESSAGES, RESPONSES}, id="all that it streams"),
        pytest.param("SGLang", {CHAT, TEXT}, id="the two that it has always had"),
        pytest.param("LlamaCpp", {CHAT}, id="its completions were once its own"),
        pytest.param("TensorRTLLM", set(), id="nobody knows"),
        pytest.param("OpenAI", set(), id="it may be anything"),
    ],
)
def test_a_mark_is_asked_for_where_the_engine_is_known_to_send_it(engine: str, marked: set[str]) -> None:
    routes = (CHAT, TEXT, MESSAGES, RESPONSES, "/v1/embeddings")
    assert {route for route in routes if marks_end(engine, route)} == marked
