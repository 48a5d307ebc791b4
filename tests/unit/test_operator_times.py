"""Times of the operator that people rely on: what is shipped is what the pages say, and within what they may wait."""

from pathlib import Path

import pytest

from kvquota_operator import errands
from kvquota_operator.adapters import api, reads, watch
from kvquota_operator.handlers import framework, restarting
from kvquota_operator.leading import Timing

ROOT = Path(__file__).parents[2]
OBSERVABILITY, UNDER_QUOTA = "docs/observability.md", "docs/how-to/put-a-pod-under-quota.md"
VALUES = "charts/kvquota/values.yaml"
LEASE = Timing()

SILENCE_S = 75.0  # a watch that says nothing any more
ROTATION_S = 60.0  # an edited key
FAILOVER_S = 15.0  # a killed leader


@pytest.mark.parametrize(
    ("page", "says"),
    [
        pytest.param(
            OBSERVABILITY, f"a silent watch is begun anew after {api.INACTIVITY_SECONDS:.0f} s", id="a silent watch"
        ),
        pytest.param(OBSERVABILITY, f"held back, for at most {errands.LONGEST_HOLD_SECONDS:.0f} s", id="a bug"),
        pytest.param(
            OBSERVABILITY, f"writes nothing from {LEASE.deadline_seconds:.0f} s after its last renewal", id="no renewal"
        ),
        pytest.param(
            OBSERVABILITY, f"nobody else may lead before {LEASE.lease_seconds:.0f} s", id="the others wait for the end"
        ),
        pytest.param(
            UNDER_QUOTA, f"within about {reads.FRESH_SECONDS:.0f} s after a change of a Secret", id="an edited key"
        ),
        pytest.param(VALUES, f"another follows within {FAILOVER_S:.0f} s after its death", id="a killed leader"),
    ],
)
def test_a_page_says_what_is_shipped(page: str, says: str) -> None:
    assert says in (ROOT / page).read_text()


def test_a_silent_watch_is_begun_anew_in_time() -> None:
    """The operator's own and kopf's, which comes back by itself or in a new life of the whole framework."""
    settings = framework.kopf_settings().watching
    assert settings.inactivity_timeout is not None
    pauses = (settings.reconnect_backoff, restarting.FIRST_PAUSE_SECONDS)
    assert api.INACTIVITY_SECONDS + watch.FIRST_RETRY_SECONDS <= SILENCE_S
    assert settings.inactivity_timeout + max(pauses) <= SILENCE_S


def test_an_edited_key_counts_in_time() -> None:
    assert reads.FRESH_SECONDS + reads.KNOWN_TIMEOUT_SECONDS + reads.RETRY_SECONDS <= ROTATION_S


def test_a_killed_leader_is_followed_in_time() -> None:
    """Also where the first try to take the Lease fails."""
    assert LEASE.lease_seconds + LEASE.look_seconds + LEASE.retry_seconds <= FAILOVER_S
