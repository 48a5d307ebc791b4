"""A sidecar that the kernel has killed for want of memory, in an injected pod on a real node."""

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from injected_pods import ENGINE, NAMESPACE, SIDECAR, Installed
from kvquota_api.usage import UsageReport
from node_path import POOL
from testcluster.node import Node
from wholepath import BATCH, SEARCH, eventually, usage_columns

pytestmark = pytest.mark.node

PROMPT_BLOCKS = 1000 // 16


def engine_loses_aborts(node: Node, pod: str, *, lost: bool) -> None:
    """Whether it goes on with what clients have left, as some engines do; what it lost before goes on all the same."""
    body = json.dumps({"aborts_lost": lost})
    request = f"urllib.request.Request('http://127.0.0.1:18000/__fake/misbehave', data={body.encode()!r})"
    script = f"import urllib.request; urllib.request.urlopen({request})"
    node.kubectl("exec", pod, "-n", NAMESPACE, "-c", ENGINE, "--", "python3", "-c", script)


def test_a_sidecar_out_of_memory_comes_back_with_honest_books(installed: Installed) -> None:
    """The stream through it is lost, and the engine goes on with it: that is in the books, and nobody's."""
    node, pod = installed.node, installed.pods()[0]
    name, address = pod["metadata"]["name"], pod["status"]["podIP"]
    engine, sidecar = (node.container(name, each, NAMESPACE) for each in (ENGINE, SIDECAR))
    before = installed.report(address)
    engine_loses_aborts(node, name, lost=True)
    with (
        ThreadPoolExecutor(1) as reading,
        installed.stream(address, SEARCH, prompt=1000, limit=7000) as stream,
    ):
        rest = reading.submit(stream.read)
        began = time.monotonic()
        node.starve_container(name, SIDECAR, NAMESPACE)
        with pytest.raises((OSError, http.client.HTTPException)):
            rest.result(30)
    eventually("it is back", lambda: _epoch(installed, address) not in ("", before.epoch))
    back_s = time.monotonic() - began
    eventually("what the engine still runs is counted", lambda: _foreign(installed, address) > PROMPT_BLOCKS)
    _is_honest(installed.report(address), before)
    assert installed.refusal(address, BATCH, prompt=4000) == "request_exceeds_kv_quota"
    eventually("the pod takes traffic", lambda: address in installed.addresses())
    ready_s = time.monotonic() - began
    print(f"the sidecar answered again after {back_s:.1f} s, the pod was ready after {ready_s:.1f} s")  # noqa: T201
    eventually("it is shown", lambda: _shown_foreign(node) > PROMPT_BLOCKS)
    now = node.container(name, SIDECAR, NAMESPACE)
    assert (now["lastState"]["terminated"]["reason"], now["restartCount"]) == ("OOMKilled", sidecar["restartCount"] + 1)
    assert node.container(name, ENGINE, NAMESPACE)["containerID"] == engine["containerID"]
    engine_loses_aborts(node, name, lost=False)
    eventually("the engine has ended it", lambda: _foreign(installed, address) == 0)
    with installed.stream(address, BATCH, prompt=1000, limit=900):
        assert installed.refusal(address, BATCH, prompt=1500) == "tenant_kv_quota_exceeded"
    eventually("the status is right again", lambda: _is_right(installed))


def _epoch(installed: Installed, address: str) -> str:
    try:
        return installed.report(address).epoch
    except (OSError, http.client.HTTPException):
        return ""


def _foreign(installed: Installed, address: str) -> int:
    """Blocks in use that nobody in the books holds."""
    found = installed.report(address).pool
    return 0 if found is None else found.unattributed


def _is_honest(after: UsageReport, before: UsageReport) -> None:
    """It knows that it is another one, charges nobody for what it did not let in, and promises none of that room."""
    assert after.started_at > before.started_at
    assert after.in_force.config_digest == before.in_force.config_digest
    assert {(each.reserved, each.used, each.in_flight, each.total.admitted) for each in after.tenants} == {(0, 0, 0, 0)}
    assert after.pool is not None
    assert (after.pool.reserved, after.pool.used) == (0, 0)
    assert after.pool.free <= after.pool.usable - after.pool.unattributed


def _shown_foreign(node: Node) -> int:
    path = "jsonpath={.status.kv.unattributed.blocks}"
    return int(node.kubectl("get", "kvmp", POOL, "-n", NAMESPACE, "-o", path) or 0)


def _is_right(installed: Installed) -> bool:
    rows = usage_columns(installed.node, NAMESPACE)
    idle = all((rows[tenant.name]["USED"], rows[tenant.name]["INFLIGHT"]) == ("0", "0") for tenant in (SEARCH, BATCH))
    refused = int(rows[BATCH.name]["REJECTED-10M"] or 0) >= 2
    wanted = {"UsageObserved": "True Reported", "PodsGoverned": "True AllGoverned", "PartitionApplied": "True Applied"}
    return idle and refused and wanted.items() <= installed.conditions().items() and _shown_foreign(installed.node) == 0
