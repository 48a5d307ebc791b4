"""Whether the demonstration held, and the summary of it.

Decides from what the clients were told and what was left behind. Pure.

Invariants:

1. It held only if every claim held; a claim that could not be tested did not hold.
2. No claim depends on how fast the machine is: latencies are shown and not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kvquota_api.usage import UsageReport
from kvquota_cli.demo.scenario import FLOOD, STEADY
from kvquota_cli.demo.tally import Act, Tally, percentile

_STATUS: Final = {200: "in a stream that had begun,", 0: "no answer,"}


@dataclass(frozen=True, slots=True)
class Leftover:
    """What was still held when all clients were gone; None is what nobody could see."""

    reserved_blocks: int | None
    unattributed_blocks: int | None
    engine_blocks: int | None
    engine_running: int | None

    @property
    def nothing(self) -> bool:
        """Everything was seen, and is 0."""
        held = (self.reserved_blocks, self.unattributed_blocks, self.engine_blocks, self.engine_running)
        return all(each == 0 for each in held)


def leftover_of(report: UsageReport) -> Leftover:
    """What the ledger and the engine hold by this report."""
    pool, engine = report.pool, report.engine
    running = None if engine.running is None or engine.waiting is None else engine.running + engine.waiting
    return Leftover(
        reserved_blocks=None if pool is None else pool.reserved,
        unattributed_blocks=None if pool is None else pool.unattributed,
        engine_blocks=engine.used_blocks,
        engine_running=running,
    )


@dataclass(frozen=True, slots=True)
class Claim:
    sentence: str
    held: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """`tallies` by tenant."""

    tallies: Mapping[str, Tally]
    leftover: Leftover

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What the demonstration is to show."""
        steady, flood = self.tallies[STEADY], self.tallies[FLOOD]
        refused = flood.refused_with("tenant_kv_quota_exceeded", "Enforced")
        return (
            Claim("steady was answered in both acts", all(steady.answered.values())),
            Claim("steady was never refused", steady.refusals == 0),
            Claim("flood was refused where it would have passed its hard quota", refused > 0),
            Claim("flood was served within its quota all the same", bool(flood.answered["Enforced"])),
            Claim("nothing leaked: ledger and engine are back at 0", self.leftover.nothing),
        )

    @property
    def held(self) -> bool:
        return all(claim.held for claim in self.claims)


def summary(outcome: Outcome) -> tuple[str, ...]:
    """The lines of it."""
    return tuple(_lines(outcome))


def _lines(outcome: Outcome) -> Iterator[str]:
    for tenant in (STEADY, FLOOD):
        yield from _tenant(tenant, outcome.tallies[tenant])
    left = outcome.leftover
    yield (
        f"after     ledger {_shown(left.reserved_blocks)} blocks, engine {_shown(left.engine_blocks)} blocks,"
        f" {_shown(left.engine_running)} requests in the engine"
    )
    for claim in outcome.claims:
        yield f"{'  held' if claim.held else 'FAILED'}    {claim.sentence}"


def _tenant(tenant: str, tally: Tally) -> Iterator[str]:
    yield f"{tenant:<10}{counts_of(tally)}"
    yield f"          first token in act 1: {_latency(tally, 'Counted')}; in act 2: {_latency(tally, 'Enforced')}"
    for (act, status, code), count in sorted(tally.refused.items(), key=lambda each: -each[1]):
        told = f"{count:,} x {_STATUS.get(status, status)} {code}" + (" in act 1" if act == "Counted" else "")
        yield f"          {told}, such as:"
        yield f'            "{tally.sentences[status, code].message}"'


def counts_of(tally: Tally) -> str:
    """What came of everything that was sent; the parts sum to it."""
    parts = [f"{tally.sent:,} sent", f"{tally.answers:,} answered", f"{tally.refusals:,} refused"]
    parts += [f"{tally.cut:,} cut when an act ended"] if tally.cut else []
    parts += [f"{tally.running:,} running"] if tally.running else []
    return ", ".join(parts)


def _latency(tally: Tally, act: Act) -> str:
    half, most = (percentile(tally.answered[act], percent) for percent in (50, 95))
    return "none" if half is None or most is None else f"p50 {half:.2f} s, p95 {most:.2f} s"


def _shown(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"
