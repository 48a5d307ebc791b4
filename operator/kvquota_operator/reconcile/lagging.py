"""Where a quota is not in force.

Decides whether a quota may be called in force, by what its pool's pods enforce. Pure.

Invariants:

1. A quota is not called in force before every pod that is ready, or reports, has said that it has what it should.
2. Of one that is called in force, nothing is said while its pods take an edit: they have GRACE_SECONDS for it.
3. Once it is said, it stands until all pods have what they should, across a restart of the operator too.

It does not know in what a config differs from the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from kvquota_api.conditions import Condition
from kvquota_api.pod_config import PodConfig
from kvquota_operator.reconcile.pods import LivePod
from kvquota_operator.reconcile.verdicts import Verdict, listed

GRACE_SECONDS: Final = 10.0  # an edit is in force on all pods of a large pool within five
NOT_IN_FORCE: Final = "NotInForce"


@dataclass(frozen=True, slots=True)
class Lag:
    """A pod that for `seconds` has not had in force what it should; `heard`: it reports, and says so itself."""

    pod: str
    seconds: float
    heard: bool


def lagging(
    pods: Iterable[LivePod], wanted: Mapping[str, PodConfig], behind: Mapping[str, float], now: float
) -> tuple[Lag, ...]:
    """Of `pods`, those that lag; `wanted` and `behind` (since when, on the clock of `now`) by uid.

    A pod of which no config is wanted, since the one that it should have cannot be stored, lags for ever.
    """
    found = []
    for live in pods:
        config = wanted.get(live.pod.uid)
        since = -inf if config is None else behind.get(live.pod.uid)
        obeys = config is not None and live.in_force.config_digest == config.digest
        if since is not None and not obeys and (live.pod.ready or live.fresh):
            found.append(Lag(live.pod.name, now - since, live.fresh))
    return tuple(found)


def not_in_force(pool: str, lags: Sequence[Lag], stored: Condition | None) -> Verdict | None:
    """What is said of a quota of `pool`, where there are such pods; `stored`: its condition Ready so far."""
    grace = 0.0 if stored is not None and stored.reason == NOT_IN_FORCE else GRACE_SECONDS
    late = [each for each in lags if each.seconds >= grace]
    if late:
        heard = [each.pod for each in late if each.heard]
        silent = [each.pod for each in late if not each.heard]
        return Verdict("False" if heard else "Unknown", NOT_IN_FORCE, _message(pool, heard, silent))
    if stored is not None and stored.status == "True":
        return None
    names = listed(each.pod for each in lags)
    return Verdict("Unknown", "NotInForceYet", f"the config of these pods is on its way to them: {names}")


def _message(pool: str, heard: Sequence[str], silent: Sequence[str]) -> str:
    found = [f"{listed(heard)}: another config is in force there, or none"] if heard else []
    found += [f"{listed(silent)}: nobody knows what is in force there, since no report comes"] if silent else []
    return (
        f"the quota is not in force, or not as it is written, on pods of ModelPool {pool} ({'; '.join(found)}). See the"
        " conditions PodsGoverned and UsageObserved of the pool for why, or the logs of the container kvquota of these"
        " pods"
    )
