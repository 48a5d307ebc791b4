"""The rules of docs/accounting.md on percent, bytes and tokens, one test for each."""

from __future__ import annotations

import pytest

import reconcile_builders as make
from bookkeeping import config, open_books, share, streamed
from kvquota_api.amounts import Blocks
from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.quota import Share
from kvquota_cli.planning.sizes import contexts
from kvquota_operator.planning.blocks import blocks_of
from kvquota_operator.reconcile.measured import measured_plan
from kvquota_sidecar.ledger.books import Admitted
from ledger_figures import plan

KV = config(usable=18_431).kv


def test_percent_of_memory() -> None:
    """Half of 80 GiB in blocks of 10 MiB."""
    half = make.pool(model__name="some/unknown", memory__kvPool={"percent": 50}, gpu__memory="80Gi")
    found = measured_plan(half.spec, [make.report(blocks=4096)])
    assert found is not None
    assert found.bytes_per_block == 10 * 2**20


@pytest.mark.parametrize(
    ("amount", "blocks"),
    [
        pytest.param(Share(percent=40), 7_372, id="40 percent of 18,431 is 7,372.4: rounded down"),
        pytest.param(Share(percent="2.5"), 460, id="up to two decimals"),
        pytest.param(Share(bytes="8Gi"), 4_096, id="bytes of one GPU's share"),
        pytest.param(Share(bytes=2**21 * 5 - 1), 4, id="bytes are rounded down"),
        pytest.param(Share(tokens=20_001), 1_251, id="tokens are rounded up"),
    ],
)
def test_roundings(amount: Share, blocks: int) -> None:
    assert blocks_of(amount, Blocks(18_431), KV) == blocks


@pytest.mark.parametrize("parts", [3, 7, 9, 11])
def test_roundings__percents_never_sum_to_more_than_the_whole(parts: int) -> None:
    percent = Share(percent=f"{10_000 // parts / 100:.2f}")
    assert parts * blocks_of(percent, Blocks(18_431), KV) <= 18_431


def test_roundings__on_a_hybrid_each_request_pays_its_state_blocks_too() -> None:
    groups = (LayerGroup(kind="Full", block_tokens=16), LayerGroup(kind="State", block_tokens=16, fixed_blocks=3))
    books = open_books(share(), kv=plan(groups=groups))
    answers = [books.ask(streamed("inference/search", (160,), 1, 16), 0.0) for _ in range(2)]
    assert [each.reserved for each in answers if isinstance(each, Admitted)] == [14, 14]


def test_roundings__of_the_command_line() -> None:
    assert contexts("1k,2k") == (1024, 2048)
