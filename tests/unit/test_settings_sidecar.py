"""Flags and environment of the sidecar."""

from pathlib import Path

import pytest

from kvquota_sidecar.proxy.engine_side import EngineAddress
from kvquota_sidecar.proxy.hub import Patience
from kvquota_sidecar.settings import Bind, Settings, SettingsError, read_settings
from kvquota_sidecar.tls import CertificateFiles


def test_without_anything_the_defaults_hold() -> None:
    assert read_settings([], {}) == Settings()


EVERYTHING = {
    "listen": "127.0.0.1:0",
    "engine": "http://[::1]:9/",
    "admin": "[::]:9601",
    "config": "/c/config.json",
    "identity": "/i",
    "failure-policy": "Open",
    "pod-uid": "uid",
    "node-address": "10.0.0.1, fd00::1,",
    "drain-seconds": "7.5",
    "lame-duck-seconds": "0",
    "engine-silence-seconds": "30",
    "sample-seconds": "0.5",
    "files-seconds": "1",
    "hang-seconds": "4",
    "tls-cert": "/t/tls.crt",
    "tls-key": "/t/tls.key",
    "max-body-mib": "1",
    "max-buffered-mib": "2",
    "max-connections": "10",
}
READ = Settings(
    listen=Bind("127.0.0.1", 0),
    engine=EngineAddress("::1", 9),
    admin=Bind("::", 9601),
    config=Path("/c/config.json"),
    identity=Path("/i"),
    failure_policy="Open",
    pod_uid="uid",
    node_addresses=("10.0.0.1", "fd00::1"),
    drain_seconds=7.5,
    lame_duck_seconds=0.0,
    silence_seconds=30.0,
    sample_seconds=0.5,
    files_seconds=1.0,
    hang_seconds=4.0,
    tls=CertificateFiles(Path("/t/tls.crt"), Path("/t/tls.key")),
    patience=Patience(max_body_bytes=1 << 20, max_held_bytes=2 << 20, max_connections=10),
)


def test_every_flag_has_an_environment_variable_that_means_the_same() -> None:
    flags = [word for name, value in EVERYTHING.items() for word in (f"--{name}", value)]
    environ = {"KVQUOTA_" + name.replace("-", "_").upper(): value for name, value in EVERYTHING.items()}
    assert read_settings(flags, {}) == READ
    assert read_settings([], environ) == READ
    assert read_settings(flags, dict.fromkeys(environ, "nonsense")) == READ


BUFFERED = {
    "no limit of the process": (None, [], 256),
    "a third of what 64 MiB leave": (256, [], 64),
    "room for one body at least": (80, [], 8),
    "room for one large body at least": (256, ["--max-body-mib", "100"], 100),
    "what is given, whatever the limit": (256, ["--max-buffered-mib", "9"], 9),
    "what is given, but room for one body": (256, ["--max-buffered-mib", "3"], 8),
}


@pytest.mark.parametrize(("limit_mib", "flags", "expected_mib"), BUFFERED.values(), ids=BUFFERED)
def test_bodies_are_buffered_within_the_memory_that_there_is(
    limit_mib: int | None, flags: list[str], expected_mib: int
) -> None:
    limit = None if limit_mib is None else limit_mib << 20
    assert read_settings(flags, {}, memory_bytes=limit).patience.max_held_bytes == expected_mib << 20


BAD = {
    "a flag that nobody knows": (["--nonsense", "1"], "--nonsense"),
    "an abbreviated flag": (["--list", "a:1"], "--list"),
    "a flag without a value": (["--listen"], "--listen"),
    "no port": (["--listen", "0.0.0.0"], "--listen is HOST:PORT"),
    "a port of letters": (["--admin", "0.0.0.0:http"], "--admin is HOST:PORT"),
    "half an IPv6 address": (["--listen", "[::1"], "--listen is HOST:PORT"),
    "a bracket that nothing closes": (["--listen", "[::1:80"], "--listen is HOST:PORT"),
    "a port beyond all": (["--admin", "0.0.0.0:65536"], "--admin is HOST:PORT"),
    "an engine without a scheme": (["--engine", "127.0.0.1:1"], "--engine is http://HOST:PORT"),
    "an engine over TLS": (["--engine", "https://127.0.0.1:1"], "--engine is http://HOST:PORT"),
    "an engine with a path": (["--engine", "http://127.0.0.1:1/v1"], "--engine is http://HOST:PORT"),
    "an engine of a scheme alone": (["--engine", "http://"], "--engine is http://HOST:PORT with a port from 1"),
    "a word beside the version": (["--version", "foo"], "unrecognized arguments: foo"),
    "an engine without a host": (["--engine", "http://:1"], "--engine needs a host"),
    "an engine on no port": (["--engine", "http://a:0"], "--engine needs a host"),
    "a policy in other letters": (["--failure-policy", "open"], "Closed or Open"),
    "seconds of letters": (["--drain-seconds", "soon"], "--drain-seconds is a number of at least 0"),
    "seconds below zero": (["--drain-seconds", "-1"], "--drain-seconds"),
    "seconds that are no number": (["--drain-seconds", "nan"], "--drain-seconds"),
    "seconds without end": (["--drain-seconds", "inf"], "--drain-seconds"),
    "buffers of letters": (["--max-buffered-mib", "much"], "--max-buffered-mib is a number of at least"),
    "a hang of no time": (["--hang-seconds", "0.5"], "--hang-seconds is a number of at least 1"),
    "a certificate without its key": (["--tls-cert", "tls.crt"], "--tls-cert and --tls-key belong together"),
    "a key without its certificate": (["--tls-key", "tls.key"], "--tls-cert and --tls-key belong together"),
    "no body at all": (["--max-body-mib", "0"], "--max-body-mib"),
}


@pytest.mark.parametrize(("flags", "says"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_named_in_one_sentence(flags: list[str], says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings(flags, {})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_help_is_for_those_who_start_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        read_settings(["--help"], {})
    told = " ".join(capsys.readouterr().out.split())
    assert "Quotas on the KV-cache memory of one engine" in told
    assert "KVQUOTA_*" not in told


def test_an_engine_of_ipv6_is_addressed_in_brackets() -> None:
    assert EngineAddress("::1", 9).authority == b"[::1]:9"
    assert EngineAddress("127.0.0.1", 9).authority == b"127.0.0.1:9"
