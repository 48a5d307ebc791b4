"""Where the sidecar says that it listens."""

import io
import json
from pathlib import Path

import pytest

from kvquota_sidecar.listening import written
from kvquota_sidecar.settings import Bind, Settings
from kvquota_sidecar.sidecar import Sidecar

SIX = pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")


@pytest.mark.parametrize(
    ("bind", "text"),
    [
        pytest.param(Bind("0.0.0.0", 8000), "0.0.0.0:8000", id="IPv4"),
        pytest.param(Bind("::1", 8000), "[::1]:8000", id="IPv6"),
        pytest.param(Bind("localhost", 8000), "localhost:8000", id="a name"),
    ],
)
def test_an_address_as_it_stands_in_a_url(bind: Bind, text: str) -> None:
    assert written(bind) == text


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=SIX)])
async def test_the_log_says_where_it_serves(host: str) -> None:
    log = io.StringIO()
    settings = Settings(listen=Bind(host, 0), admin=Bind(host, 0), drain_seconds=0.0, lame_duck_seconds=0.0)
    async with Sidecar(settings, log=log) as sidecar:
        where = (written(sidecar.traffic_address), written(sidecar.admin_address))
    [said] = [line for line in map(json.loads, log.getvalue().splitlines()) if line["event"] == "serving"]
    assert (said["traffic"], said["admin"]) == where
    assert said["traffic"].startswith("[::1]:" if host == "::1" else "127.0.0.1:")
