"""Where the pod's default routes lead."""

from pathlib import Path

from kvquota_sidecar.channel.neighbours import gateways, ipv4_gateways, ipv6_gateways

# Of a pod on a bridge: the default route, and that of its own subnet.
IPV4 = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0101F40A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0001F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
tun0\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0

"""
ANY, GATEWAY = "0" * 32, "fd0000000000000000000000000000a1"
IPV6 = "\n".join(
    [
        f"fd000000000000000000000000000000 40 {ANY} 00 {ANY} 00000100 00000001 00000000 00000001 eth0",
        f"{ANY} 00 {ANY} 00 {GATEWAY} 00000400 00000001 00000000 00000003 eth0",
        f"{ANY} 00 {ANY} 00 {ANY} ffffffff 00000001 00000000 00200200 lo",
        "",
    ]
)


def test_the_gateways_of_the_default_routes_are_found() -> None:
    assert ipv4_gateways(IPV4) == ("10.244.1.1",)
    assert ipv6_gateways(IPV6) == ("fd00::a1",)


def test_without_routes_there_is_none() -> None:
    assert ipv4_gateways("") == ipv4_gateways("Iface\n") == ()
    assert ipv6_gateways("") == ()


def test_tables_that_cannot_be_read_name_nobody(tmp_path: Path) -> None:
    assert gateways(tmp_path) == ()
    (tmp_path / "route").write_text(IPV4)
    (tmp_path / "ipv6_route").write_text(IPV6)
    assert gateways(tmp_path) == ("10.244.1.1", "fd00::a1")
