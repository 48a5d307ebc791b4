"""Why a pool cannot be planned: one tree, each with a reason that a condition can carry."""

from kvquota_api.memory.errors import PlanError


def test_errors_are_one_tree_with_reasons() -> None:
    kinds = [PlanError, *PlanError.__subclasses__()]

    assert sorted(kind.reason for kind in kinds) == [
        "EngineUnknown",
        "ModelConfigInvalid",
        "PartitionTooLarge",
        "PlanInvalid",
        "PoolTooSmall",
        "UnknownArchitecture",
    ]
