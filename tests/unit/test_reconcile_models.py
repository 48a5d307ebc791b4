"""Models whose layers keep different things get quotas as any other: the config of their pods, and its tokens."""

import pytest

import reconcile_builders as make
from kvquota_api.memory.blocks import blocks_for
from kvquota_api.pod_config import decode_config, encode

# Preset, kinds of its groups, and blocks that a request of 32,768 tokens takes.
MODELS = {
    "windows beside full layers": ("gpt-oss-20b", {"Full", "Sliding"}, 3_081),
    "many groups of windows": ("gemma-3-27b", {"Full", "Sliding"}, 8_582),
    "one latent for all heads": ("deepseek-v3", {"Full"}, 2_048),
    "recurrent state": ("qwen3-next-80b-a3b", {"Full", "State"}, 67),
}


def pool(preset):
    changes = {"model__config": {"preset": preset}, "model__weightDtype": "auto", "engine__blockSize": None}
    return make.pool(gpu__memory="2Ti", **changes)


@pytest.mark.parametrize(("preset", "kinds", "blocks"), MODELS.values(), ids=MODELS)
def test_a_pod_is_told_what_a_request_of_its_model_takes(preset, kinds, blocks):
    (config,) = make.decided(pool=pool(preset)).configs
    assert decode_config(encode(config)) == config
    assert {group.kind for group in config.kv.groups} == kinds
    assert blocks_for(config.kv.groups, 32_768) == blocks


@pytest.mark.parametrize("preset", [preset for preset, _, _ in MODELS.values()])
def test_a_share_in_tokens_holds_that_many_tokens(preset):
    share = make.seen(make.quota("search", kv={"soft": {"tokens": 30_000}, "hard": {"tokens": 65_536}}))
    (config,) = make.decided(pool=pool(preset), quotas=share).configs
    one = blocks_for(config.kv.groups, 32_768)
    assert make.hards(config)["search"] == 2 * one
    assert make.softs(config)["search"] == blocks_for(config.kv.groups, 30_000)
