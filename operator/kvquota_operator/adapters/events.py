"""Events of Kubernetes: what `kubectl describe` shows below an object.

Invariants: the same sentence about the same object is told at most every ten minutes; all sentences together come at
most at one a second, after a first burst; what is too much is dropped and counted, never queued.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from kvquota_api.meta import API_VERSION
from kvquota_operator.adapters.api import FIELD_MANAGER, Api, Json, object_path
from kvquota_operator.ports import Clock, ClusterError
from kvquota_operator.reconcile.plan import EventWanted

AGAIN_SECONDS: Final = 600.0  # an event lives for an hour; kubectl shows the last ones
PER_SECOND: Final = 1.0
BURST: Final = 25  # what client-go's recorder lets through about one object
REMEMBERED: Final = 4096  # sentences; the oldest are forgotten first
LONGEST_NOTE: Final = 1024  # characters: the bound of events.k8s.io/v1

_Sentence = tuple[str, str, str]


class Events:
    """Writes events. `instance` names this process; `dropped` is called for every event that is not written."""

    def __init__(self, api: Api, clock: Clock, *, instance: str, dropped: Callable[[], None]) -> None:
        self._api = api
        self._clock = clock
        self._instance = instance
        self._dropped = dropped
        self._told: dict[_Sentence, float] = {}
        self._tokens = float(BURST)
        self._refilled_at = clock.monotonic()

    async def record(self, namespace: str, event: EventWanted) -> None:
        """Write the event unless that is too much. Raises ClusterError; then the same sentence may come again."""
        sentence = (event.uid, event.reason, event.message)
        if not self._admit(sentence):
            self._dropped()
            return
        path = object_path("/apis/events.k8s.io/v1", namespace, "events")
        try:
            await self._api.create(path, self._body(namespace, event))
        except ClusterError:
            self._told.pop(sentence, None)
            raise

    def _admit(self, sentence: _Sentence) -> bool:
        now = self._clock.monotonic()
        self._tokens = min(float(BURST), self._tokens + (now - self._refilled_at) * PER_SECOND)
        self._refilled_at = now
        last = self._told.pop(sentence, None)
        if last is not None and now - last < AGAIN_SECONDS:
            self._told[sentence] = last
            return False
        if self._tokens < 1:
            return False
        self._tokens -= 1
        self._told[sentence] = now
        if len(self._told) > REMEMBERED:
            del self._told[next(iter(self._told))]
        return True

    def _body(self, namespace: str, event: EventWanted) -> Json:
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"namespace": namespace, "name": f"{event.name[:200]}.{secrets.token_hex(8)}"},
            "eventTime": self._clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": f"kvquota.dev/{FIELD_MANAGER}",
            "reportingInstance": self._instance[:128],
            "action": "Reconcile",
            "type": event.type,
            "reason": event.reason,
            "note": event.message[:LONGEST_NOTE],
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": event.kind,
                "namespace": namespace,
                "name": event.name,
                "uid": event.uid,
            },
        }
