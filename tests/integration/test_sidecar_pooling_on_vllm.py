"""The sidecar before the real vLLM that embeds and scores: what it counts is what is charged and learnt."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sidecar_on_vllm import asked, before, settled
from sidecar_rig import BATCH, SEARCH, eventually, share
from testengine.port import EngineUnderTest
from testengine.vllm import VllmArguments, VllmEngine

pytestmark = pytest.mark.engine

TEXT = "The quick brown fox jumps over the lazy dog. " * 8
OTHER_TEXT = "Seven boxing wizards pack five dozen jugs. " * 8
# What the tiny model, a generating one that is made to embed, can do; `classify` needs a head that it lacks.
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "embeddings": ("/v1/embeddings", {"input": TEXT}),
    "embeddings of several": ("/v1/embeddings", {"input": [TEXT, OTHER_TEXT, TEXT[:40]]}),
    "embeddings of tokens": ("/v1/embeddings", {"input": [300, 301, 302, 303]}),
    "pooling": ("/pooling", {"input": TEXT, "task": "embed"}),
    "score": ("/score", {"text_1": TEXT, "text_2": [OTHER_TEXT, TEXT[:40]]}),
    "rerank": ("/rerank", {"query": TEXT, "documents": [OTHER_TEXT, TEXT[:40]]}),
}


@pytest.fixture(scope="module")
def embedding() -> Iterator[EngineUnderTest]:
    with VllmEngine(VllmArguments(extra=("--runner", "pooling", "--convert", "embed"))) as engine:
        yield engine.under_test


@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES)
async def test_what_is_pooled_is_settled_by_the_engines_own_count(
    embedding: EngineUnderTest, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = (share(SEARCH, soft=100, hard=400), share(BATCH, soft=100, hard=400))
    async with before(embedding, *shares) as running:
        counts = settled(running, monkeypatch)
        got = await asked(running, path, body, tenant=SEARCH)
        assert (got.status, got.complete) == (200, True), got.body
        await running.idle()
        tenant = running.report().tenants[0]
        assert (tenant.total.admitted, tenant.reserved) == (1, 0)
        await eventually("it is idle", lambda: running.report().engine.used_blocks == 0)
    assert counts == [(json.loads(got.body)["usage"]["prompt_tokens"], 0)]


async def test_what_can_never_fit_is_refused_before_the_engine_sees_it(embedding: EngineUnderTest) -> None:
    async with before(embedding, share(SEARCH, soft=0, hard=4)) as running:
        got = await asked(running, "/v1/embeddings", {"input": TEXT * 10}, tenant=SEARCH)
        assert (got.status, got.code) == (400, "request_exceeds_kv_quota")
