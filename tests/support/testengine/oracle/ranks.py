"""The parallel groups of one rank, without any other rank behind them."""

import importlib
from typing import Any

_GROUPS = ("_WORLD", "_INNER_DP_WORLD", "_TP", "_PP", "_DCP", "_PCP", "_DP", "_EP", "_EPLB", "_ETP")


def be_on_one_machine() -> None:
    """Answer for the absent ranks that they are near; to be called before the rest of vLLM is imported."""
    state: Any = importlib.import_module("vllm.distributed.parallel_state")
    state.in_the_same_node_as = lambda group, source_rank=0: [True] * group.size()


def stand_at(parallel: Any, stage: int) -> None:
    """Be the first tensor-parallel rank of a pipeline stage, in vLLM's groups and in its configuration."""
    tensor, pipeline = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    context = parallel.decode_context_parallel_size
    parallel.rank = stage * tensor
    sizes = {"_TP": tensor, "_ETP": tensor, "_DCP": context, "_EP": tensor, "_WORLD": tensor * pipeline}
    state: Any = importlib.import_module("vllm.distributed.parallel_state")
    for name in _GROUPS:
        setattr(state, name, _group(name, sizes.get(name, 1), 0))
    state._PP = _group("_PP", pipeline, stage)
    state._WORLD.rank = parallel.rank
    state._NODE_COUNT = 1


class _Group:
    """As much of a group as layers look at while they are made."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def _group(name: str, size: int, rank: int) -> _Group:
    return _Group(
        unique_name=name,
        world_size=size,
        rank=rank,
        rank_in_group=rank,
        local_rank=0,
        ranks=list(range(size)),
        first_rank=0,
        last_rank=size - 1,
        is_first_rank=rank == 0,
        is_last_rank=rank == size - 1,
        next_rank=(rank + 1) % size,
        prev_rank=(rank - 1) % size,
        device_group=_Group(size=lambda: size, rank=lambda: rank),
        cpu_group=_Group(size=lambda: size, rank=lambda: rank),
        device_communicator=None,
        mq_broadcaster=None,
    )
