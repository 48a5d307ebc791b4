"""The salt that keeps the tenants' cached blocks apart."""

from __future__ import annotations

from itertools import combinations

from kvquota_sidecar.estimate.salt import derived_salt

KEY = b"k" * 32
PARTS = [("a/t", ""), ("a/t", "x"), ("a/tx", ""), ("a/", "tx"), ("a", "/tx"), ("", "a/tx"), ("b/t", "x"), ("b/t", "")]


def test_two_tenants_never_share_a_salt_however_the_parts_are_cut() -> None:
    salts = [derived_salt(KEY, *parts) for parts in PARTS]
    assert [pair for pair in combinations(salts, 2) if pair[0] == pair[1]] == []


def test_the_same_parts_give_the_same_salt_and_another_key_another() -> None:
    assert derived_salt(KEY, "a/t", "x") == derived_salt(KEY, "a/t", "x")
    assert derived_salt(KEY, "a/t", "x") != derived_salt(b"j" * 32, "a/t", "x")


def test_the_engine_accepts_it_whatever_the_client_sends() -> None:
    for client in ("", "@/\\\0", "ä" * 10_000, "\ud800"):
        salt = derived_salt(KEY, "a/t", client)
        assert 0 < len(salt) <= 128
        assert not set(salt) & set("@/\\\0")


def test_the_salt_does_not_show_the_tenant() -> None:
    assert "search" not in derived_salt(KEY, "inference/search", "search")
