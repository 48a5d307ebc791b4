"""What the figures of the sidecar are to be, and how those that were measured stand to it.

An aim is met or missed by quiet rounds, `ENOUGH_ROUNDS` of them: what fewer say is a hint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

ENOUGH_ROUNDS: Final = 3

Found = Mapping[str, Any]
"""By part of the bench, what proxybench wrote."""


@dataclass(frozen=True, slots=True)
class Figure:
    """`quiet`: rounds behind it that no stranger disturbed."""

    value: float
    quiet: int


Read = Callable[[Found], Figure | None]
"""The figure; None where it was not measured."""


@dataclass(frozen=True, slots=True)
class Aim:
    """`most` or `least`: the bound; without one the figure is told and not judged."""

    name: str
    read: Read
    least: float | None = None
    most: float | None = None

    def verdict(self, figure: Figure | None) -> str:
        if figure is None or (self.least is None and self.most is None):
            return ""
        is_met = (self.least is None or figure.value >= self.least) and (self.most is None or figure.value <= self.most)
        said = "met" if is_met else "MISSED"
        return said if figure.quiet >= ENOUGH_ROUNDS else f"hint: {said.lower()}"


def _row(part: str, test: str, name: str, proxy: str = "sidecar", *, kind: str = "medians") -> Read:
    """A figure of one proxy in one test."""

    def read(found: Found) -> Figure | None:
        rows = found.get(part, {}).get("rows", [])
        own = next((row for row in rows if (row["proxy"], row["test"]) == (proxy, test)), None)
        return None if own is None or name not in own[kind] else Figure(own[kind][name], own["quiet"])

    return read


def _of_nginx(test: str, name: str, proxy: str = "sidecar") -> Read:
    return _row("compare", test, name, proxy, kind="ratios")


def _ahead_of(peer: str) -> Read:
    def read(found: Found) -> Figure | None:
        own, other = (_of_nginx("T64", "reqs_core", proxy)(found) for proxy in ("sidecar", peer))
        if own is None or other is None or not other.value:
            return None
        return Figure(own.value / other.value, min(own.quiet, other.quiet))

    return read


def _in_ms(of_us: Read) -> Read:
    def read(found: Found) -> Figure | None:
        figure = of_us(found)
        return None if figure is None else Figure(figure.value / 1e3, figure.quiet)

    return read


def _cores(found: Found) -> Figure | None:
    rows = found.get("tail", {}).get("rows", [])
    own = next((row for row in rows if (row["proxy"], row["test"]) == ("sidecar", "S20x1024")), None)
    return None if own is None else Figure(own["cpu"], own["quiet"])


def _refusal(part: str) -> Read:
    def read(found: Found) -> Figure | None:
        refused = found.get(part, {}).get("refuse")
        return Figure(refused["cpu_us_per_answer"], refused["quiet"]) if refused else None

    return read


AGAIN: Final = _refusal("refuse")
NEW: Final = _refusal("refuse-new")
P99: Final = _in_ms(_row("tail", "S20x1024", "p99"))


def _dearer_refusal(found: Found) -> Figure | None:
    """The worse of both; of one alone it is a hint."""
    both = [figure for figure in (AGAIN(found), NEW(found)) if figure is not None]
    if not both:
        return None
    quiet = min(figure.quiet for figure in both) if len(both) == 2 else 0
    return Figure(max(figure.value for figure in both), quiet)


def _rise(found: Found) -> Figure | None:
    felt = found.get("neighbour", {}).get("neighbour")
    return Figure(felt["rise_ms"], felt["quiet"]) if felt else None


def _closed_after(found: Found) -> Figure | None:
    """Of the last of all streams and waiting requests; five seconds where one was never closed."""
    own = [one for one in found.get("disconnect", {}).get("disconnect", []) if one["proxy"] == "sidecar"]
    lasts = [one["last_ms"] if one["closed"] == one["streams"] else 5000.0 for one in own]
    return Figure(max(lasts), _rounds(own)) if own else None


def _growth(found: Found) -> Figure | None:
    own = [one for one in found.get("stall", {}).get("stall", []) if one["proxy"] == "sidecar"]
    return Figure(max(one["growth_bytes"] / 1e6 for one in own), _rounds(own)) if own else None


def _rounds(own: Sequence[Mapping[str, Any]]) -> int:
    """All: the worst of them counts, which strangers can only make worse."""
    return len({one["round"] for one in own})


AIMS: Final = (
    Aim("requests per second per core, of nginx's", _of_nginx("T64", "reqs_core"), least=0.6),
    Aim("... of Envoy's", _ahead_of("envoy"), least=1.0),
    Aim("... of vllm-router's", _ahead_of("vllm-router"), least=1.0),
    Aim("CPU per streamed chunk, of nginx's", _of_nginx("S20x256", "cpu_chunk"), most=1.35),
    Aim("p99 of a chunk's delay, 1,024 streams x 50/s, ms", P99, most=10.0),
    Aim("... cores that these take", _cores, most=1.0),
    Aim("... where all of them start within 80 ms", _in_ms(_row("tail", "W20x1024", "p99"))),
    Aim("CPU per refusal on a kept connection, us", _dearer_refusal, most=30.0),
    Aim("... of a body that comes again", AGAIN),
    Aim("... of a new body, for a tenant at its quota", NEW),
    Aim("what another tenant's refused flood adds to a p99, ms", _rise, most=1.0),
    Aim("memory at 1,024 streams, MB", _row("compare", "S50x1024", "rss_mb"), most=64.0),
    Aim("from the client's end to the engine's, last of 64, ms", _closed_after, most=50.0),
    Aim("growth while a reader stops for 6 s, MB", _growth, most=1.0),
)


def judged(found: Found) -> list[dict[str, Any]]:
    """Every aim with its figure, None where it was not measured, and the verdict."""
    rows = []
    for aim in AIMS:
        figure = aim.read(found)
        measured = {"figure": None, "quiet": 0} if figure is None else {"figure": figure.value, "quiet": figure.quiet}
        bounds = {"aim": aim.name, "least": aim.least, "most": aim.most}
        rows.append({**bounds, **measured, "verdict": aim.verdict(figure)})
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """For people, one line for each."""
    lines = []
    for row in rows:
        bounds = {"at least": row["least"], "at most": row["most"]}
        bound = next((f"{word} {value:g}" for word, value in bounds.items() if value is not None), "")
        figure = "not measured" if row["figure"] is None else f"{row['figure']:.2f}"
        lines.append(f"{row['aim']:54} {figure:>12}   {bound:14} {row['verdict']}".rstrip())
    return "\n".join(lines)
