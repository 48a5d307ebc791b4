"""The condition PartitionApplied: whether engines came up with what was planned, and what to do where not."""

import pytest

import reconcile_builders as make


def condition(kind, **fields):
    return make.condition(make.decided(**fields).pool_status, kind)


def engine(**fields):
    return {"reports": make.reported(make.report(**fields))}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {}, ("True", "Applied", "every engine that reports came up with the planned KV pool"), id="as planned"
        ),
        pytest.param(
            engine(blocks=9_216),
            (
                "False",
                "SizeDiffers",
                "the engine of pod llama-8b-0 came up with 9,216 blocks, planned are 18,432 blocks (294,912 tokens, 36"
                " GiB on one GPU); quotas hold on the smaller. Restart the engine with --kv-cache-memory-bytes"
                " 38654705664 --block-size 16, or correct spec.memory.kvPool",
            ),
            id="a smaller pool",
        ),
        pytest.param(engine(blocks=20_000), ("False", "SizeDiffers", None), id="a larger pool"),
        pytest.param(
            engine(block_tokens=32, blocks=9_216),
            (
                "False",
                "BlockSizeDiffers",
                "the engine of pod llama-8b-0 has blocks of 32 tokens, planned are 16: set spec.engine.blockSize to"
                " what the engine uses, or start it with --block-size 16",
            ),
            id="other blocks",
        ),
        pytest.param(
            {"pods": (make.pod(plan="0" * 16),), **engine(blocks=9_216)},
            (
                "False",
                "EarlierPlan",
                "pod llama-8b-0 has 9,216 blocks (147,456 tokens, 36 GiB on one GPU) by an earlier plan, with which the"
                " engine was started; planned are now 18,432 blocks (294,912 tokens, 36 GiB on one GPU). On each pod"
                " quotas hold by its own plan: roll the pods out again (kubectl rollout restart)",
            ),
            id="a pod of an earlier plan that no copy tells any more",
        ),
        pytest.param(
            {"pods": (make.pod(plan="0" * 16),), **engine(block_tokens=32)},
            ("False", "EarlierPlan", None),
            id="a pod of an earlier plan with other blocks",
        ),
        pytest.param(
            {"pods": (make.pod(plan="0" * 16),)},
            ("True", "Applied", None),
            id="an earlier plan with the same partition",
        ),
        pytest.param(
            {"pods": (make.pod(plan=make.plan_hash(make.pool())),), **engine(blocks=9_216)},
            ("False", "SizeDiffers", None),
            id="the plan in force, and another size all the same",
        ),
        pytest.param(engine(block_tokens=None), ("True", "Applied", None), id="a block size that is not said"),
        pytest.param(
            engine(blocks=None),
            ("Unknown", "NotMeasured", "no engine has said yet how many blocks it came up with"),
            id="an engine that loads",
        ),
        pytest.param(
            {"reports": make.reported(make.report(blocks=9_216), age=60.0)},
            ("Unknown", "NotMeasured", None),
            id="a silent pod",
        ),
        pytest.param({"pods": ()}, ("Unknown", "NotMeasured", None), id="no pod"),
    ],
)
def test_partition_applied(fields, expected):
    found = condition("PartitionApplied", **fields)
    assert (found[:2], expected[2] or found[2]) == (expected[:2], found[2])


def test_an_engine_without_flags_of_that_name_is_told_the_size():
    sglang = make.pool(engine__type="SGLang", engine__version="0.5.23", engine__plugin="Off")
    assert condition("PartitionApplied", pool=sglang, **engine(blocks=9_216))[2].endswith(
        "Restart the engine with 38652608512 bytes of KV cache on each GPU, in blocks of 16 tokens, or correct"
        " spec.memory.kvPool"
    )
