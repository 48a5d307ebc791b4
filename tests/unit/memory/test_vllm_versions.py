"""What vLLM does differently by version."""

import pytest

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.vllm.versions import Rules, release_of, rules_of

NOW = Rules(
    certain=True,
    logs_capacity=True,
    hybrid_manager=True,
    chunked_prefill=True,
    async_default=True,
    counts_steps_in_flight=True,
    caches_state_prefixes=True,
    latent_grain=128,
)


@pytest.mark.parametrize(
    ("version", "release"),
    [
        pytest.param("0.32.0", (0, 32, 0), id="a release"),
        pytest.param("v0.20.2rc1", (0, 20, 2), id="a candidate with a v"),
        pytest.param("0.20.2rc1.dev249+gabcdef", (0, 20, 2), id="a build between releases"),
        pytest.param("0.6", (0, 6, 0), id="without a patch"),
    ],
)
def test_version_is_read(version: str, release: tuple[int, int, int]) -> None:
    assert release_of(version) == release


@pytest.mark.parametrize("version", [None, "0.32.0", "0.33.1"])
def test_rules_of_the_planned_version_hold_from_it_on(version: str | None) -> None:
    assert rules_of(version) == NOW


def test_oldest_version_has_none_of_the_later_rules() -> None:
    assert rules_of("0.6.0") == Rules(
        certain=True,
        logs_capacity=False,
        hybrid_manager=False,
        chunked_prefill=False,
        async_default=False,
        counts_steps_in_flight=False,
        caches_state_prefixes=False,
        latent_grain=64,
    )


@pytest.mark.parametrize(
    ("version", "field", "value"),
    [
        pytest.param("0.20.1", "logs_capacity", False, id="0.20.1 logs blocks by groups"),
        pytest.param("0.20.2", "logs_capacity", True, id="0.20.2 logs capacity"),
        pytest.param("0.27.1", "caches_state_prefixes", False, id="0.27.1 keeps one state per sequence"),
        pytest.param("0.28.0", "caches_state_prefixes", True, id="0.28.0 keeps states for prefixes"),
        pytest.param("0.25.1", "counts_steps_in_flight", False, id="0.25.1 counts one step in flight"),
        pytest.param("0.26.0", "counts_steps_in_flight", True, id="0.26.0 counts all"),
        pytest.param("0.25.0", "certain", False, id="between the versions that were compared nothing is certain"),
    ],
)
def test_rule_begins_with_its_version(version: str, field: str, value: bool) -> None:
    assert getattr(rules_of(version), field) is value


@pytest.mark.parametrize(
    ("version", "text"),
    [
        pytest.param("0.5.5", "rules from before 0.6.0 are not known", id="too old"),
        pytest.param("main", "'main' cannot be read: write it like 0.32.0", id="no number"),
    ],
)
def test_version_that_is_not_known_is_refused(version: str, text: str) -> None:
    with pytest.raises(EngineUnknownError, match=text):
        rules_of(version)
