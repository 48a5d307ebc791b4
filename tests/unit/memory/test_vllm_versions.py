"""What vLLM does differently by version."""

from dataclasses import replace

import pytest

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.vllm.versions import Rules, guesses, release_of, rules_of

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
        pytest.param("0.20.2RC1.dev249+gABC", (0, 20, 2), id="in capitals"),
        pytest.param("0.8.5.post1", (0, 8, 5), id="a build after a release"),
        pytest.param("0.7.3 V0", (0, 7, 3), id="with its engine"),
        pytest.param("0.10.2 (V1, built here)", (0, 10, 2), id="with a remark"),
        pytest.param("0.11.1rc (2025-11-06)", (0, 11, 1), id="a candidate and its date"),
        pytest.param("0.19-ish (2026-05-19)", (0, 19, 0), id="about a release"),
        pytest.param("0.9/0.10 (2025-07)", (0, 9, 0), id="one of two: the first"),
        pytest.param("0.6.x", (0, 6, 0), id="some patch"),
        pytest.param("2026-07", (0, 24, 0), id="a month: its start"),
        pytest.param("2025-10-02 (main)", (0, 11, 0), id="the day of a release"),
        pytest.param("2025-10-01", (0, 10, 1), id="the day before"),
        pytest.param("main", (0, 32, 0), id="the main branch"),
        pytest.param("Nightly", (0, 32, 0), id="a nightly build"),
        pytest.param("nightly-2026-06-15", (0, 23, 0), id="a nightly build of a day"),
        pytest.param("0.1.dev1+g0a1b2c3", (0, 32, 0), id="a checkout without tags"),
        pytest.param("0.1.dev1 (main 2026-05)", (0, 20, 0), id="a checkout without tags and its date"),
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
        pytest.param("2024-08", "vLLM 2024-08: rules from before 0.6.0 are not known", id="too long ago"),
        pytest.param("newest", "'newest' cannot be read: write it like 0.32.0, main, or a date", id="no number"),
        pytest.param("0.32.0 or so", "'0.32.0 or so' cannot be read", id="words"),
        pytest.param("0.32.0 (one) (two)", "cannot be read", id="two remarks"),
        pytest.param(f"0.{'9' * 5000}", "cannot be read", id="a number without end"),
    ],
)
def test_version_that_is_not_known_is_refused(version: str, text: str) -> None:
    with pytest.raises(EngineUnknownError, match=text):
        rules_of(version)


@pytest.mark.parametrize(
    ("version", "chunked"),
    [
        pytest.param("0.7.3", False, id="V0 is what 0.7 starts"),
        pytest.param("0.7.3 V1", True, id="V1 where it was asked for"),
        pytest.param("0.8.5", True, id="V1 is what 0.8 starts"),
        pytest.param("0.8.5 v0", False, id="V0 where it was asked for"),
    ],
)
def test_engine_beside_the_version_wins(version: str, chunked: bool) -> None:
    assert rules_of(version).chunked_prefill is chunked


@pytest.mark.parametrize(
    ("version", "said"),
    [
        pytest.param("0.32.0", (), id="a release that was read"),
        pytest.param("0.20.2rc1.dev249+gabcdef", (), id="a build that was compared"),
        pytest.param("0.20.0 (H100)", (), id="a remark"),
        pytest.param("0.7.3 V0", ("vLLM 0.7.3 V0 is taken for 0.7.3 with its V0 engine",), id="an engine"),
        pytest.param("0.19-ish", ("vLLM 0.19-ish is taken for 0.19.0",), id="about a release"),
        pytest.param("2026-05", ("vLLM 2026-05 is taken for 0.20.0, the last release until then",), id="a date"),
        pytest.param(
            "2026-07",
            (
                "vLLM 2026-07 is taken for 0.24.0, the last release until then",
                "vLLM 2026-07 is planned by the rules of 0.32",
            ),
            id="a date of a release that was not compared",
        ),
        pytest.param("main", ("vLLM main is taken for 0.32.0, the newest rules known",), id="the main branch"),
        pytest.param("0.25.1", ("vLLM 0.25.1 is planned by the rules of 0.32",), id="between what was compared"),
        pytest.param(
            "0.40", ("rules of 0.32 are taken for 0.40, which kvquota does not know",), id="a release to come"
        ),
        pytest.param("9.9", ("rules of 0.32 are taken for 9.9, which kvquota does not know",), id="far away"),
    ],
)
def test_what_a_version_was_taken_for_is_said(version: str, said: tuple[str, ...]) -> None:
    assert guesses(version) == said


@pytest.mark.parametrize("version", ["0.34.0", "0.40", "9.9"])
def test_nothing_is_certain_of_a_release_to_come(version: str) -> None:
    assert rules_of(version) == replace(NOW, certain=False)
