"""What the framework that watches may leave in a cluster: nothing."""

from typing import Any

import kopf

from kvquota_operator.handlers.framework import kopf_settings

RECORD: Any = {"started": "2026-11-30T12:00:00"}
ESSENCE: Any = {"spec": {}}


def test_what_it_would_write_into_objects_stays_out_of_them() -> None:
    """No events of log lines; and whatever it would note about an object, not in its status."""
    settings, body, patch = kopf_settings(), kopf.Body({}), kopf.Patch()
    settings.persistence.progress_storage.store(body=body, patch=patch, key="handler", record=RECORD)  # type: ignore[arg-type]
    settings.persistence.diffbase_storage.store(body=body, patch=patch, essence=ESSENCE)
    assert [*patch] == ["metadata"]
    assert "operator.kvquota.dev/handler" in patch["metadata"]["annotations"]
    assert settings.posting.enabled is False
