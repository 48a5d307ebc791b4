"""Routes that make no output: what fills the cache for a moment is charged, what only reads is passed on."""

import json

import pytest

from sidecar_rig import KEYS, SEARCH, both_ends, on_both_loops, post

TEXT = "The quick brown fox jumps over the lazy dog. " * 20
POOLING = {
    "/v1/embeddings": {"input": [TEXT, TEXT]},
    "/score": {"text_1": TEXT, "text_2": [TEXT]},
    "/rerank": {"query": TEXT, "documents": [TEXT]},
    "/pooling": {"input": TEXT},
    "/classify": {"input": TEXT},
}


@pytest.mark.parametrize(("path", "body"), POOLING.items(), ids=POOLING)
@on_both_loops
async def test_what_is_pooled_is_charged_while_it_runs_and_its_usage_is_learnt(
    path: str, body: dict[str, object]
) -> None:
    async with both_ends() as (running, engine), await running.connect() as client:
        client.send(post(json.dumps({"model": "tiny", "priority": 3, **body}).encode(), path))
        upstream = await engine.next()
        seen = json.loads(upstream.body)
        assert running.report().tenants[0].reserved > 0
        upstream.answer(b'{"data":[],"usage":{"prompt_tokens":400,"total_tokens":400}}')
        assert (await client.answer()).status == 200
        await running.idle()
        learnt = running.sidecar._desk.ratios.error(SEARCH)
        percent = running.report().pool
    assert learnt is not None
    assert learnt.count == 1
    assert percent is not None
    assert percent.estimate_error_percent == round(100 * learnt.p50, 2)
    assert seen.pop("cache_salt").startswith("kvq.")
    assert seen.pop("priority") >= 3
    assert seen == {"model": "tiny", **body}
    assert "x-vllm-priority" not in upstream.headers


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/messages/count_tokens"])
@on_both_loops
async def test_what_fills_no_cache_is_passed_on_as_it_is_to_those_who_are_known(path: str) -> None:
    body = b'{"model":"tiny" , "prompt":"a","tokens":[1]}'
    async with both_ends(tokenizes=True) as (running, engine), await running.connect() as client:
        client.send(post(body, path))
        upstream = await engine.next()
        assert running.in_flight() == 0
        upstream.answer(b'{"count":1}')
        got = await client.answer()
        stranger = await client.ask(post(body, path).replace(KEYS[SEARCH].encode(), b"kvq-nobody"))
        too_large = await client.ask(post(b"x" * (9 * 1024 * 1024), path))
        assert running.report().tenants[0].total.admitted == 0
    assert (got.status, got.body, upstream.body) == (200, b'{"count":1}', body)
    assert (stranger.status, stranger.code) == (401, "unknown_tenant")
    assert (too_large.status, too_large.code) == (413, "request_too_large")
