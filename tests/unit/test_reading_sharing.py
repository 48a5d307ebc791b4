"""What the durable copies of one pool have in common, kept once."""

import msgspec

from kvquota_api.pod_config import PodConfig, decode_config, encode
from kvquota_operator.reading.sharing import MAX_PARTS, Sharing
from operator_fakes import config, part

PARTS = ("pool", "kv", "ladder", "tenants", "media", "earlier")


def read(name: str, hard_blocks: int) -> PodConfig:
    """As it comes from the API server: nothing of it is part of anything else."""
    return decode_config(encode(config(name, tenants=(part(hard_blocks, 100),))))


def common(one: PodConfig, other: PodConfig) -> list[str]:
    return [name for name in PARTS if getattr(one, name) is getattr(other, name)]


def test_two_pods_with_the_same_tenants_have_them_in_common() -> None:
    sharing = Sharing()
    first, second = (sharing.shared(read(name, 7)) for name in ("pod-0", "pod-1"))
    assert (first, second) == (read("pod-0", 7), read("pod-1", 7))
    assert common(first, second) == list(PARTS)


def test_a_pod_with_other_parts_has_its_own_and_the_rest_in_common() -> None:
    sharing = Sharing()
    first, second = (sharing.shared(read(f"pod-{blocks}", blocks)) for blocks in (7, 8))
    assert second == read("pod-8", 8)
    assert common(first, second) == [name for name in PARTS if name != "tenants"]
    assert common(first, sharing.shared(read("pod-0", 7))) == list(PARTS)


def test_what_is_remembered_has_a_bound() -> None:
    sharing = Sharing()
    first = sharing.shared(read("pod-0", 7))
    for blocks in range(MAX_PARTS):
        sharing.shared(msgspec.structs.replace(first, tenants=(part(blocks, 100),)))
    assert sharing.shared(read("pod-0", 7)) == first
    assert sharing.shared(read("pod-0", 7)).tenants is not first.tenants
