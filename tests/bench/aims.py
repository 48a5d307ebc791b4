"""What the figures of the sidecar are to be, and how those that were measured stand to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Found = Mapping[str, Any]
"""By part of the bench, what proxybench wrote."""


@dataclass(frozen=True, slots=True)
class Aim:
    """`most` or `least`: the bound; `read`: the figure, None where it was not measured."""

    name: str
    read: Callable[[Found], float | None]
    least: float | None = None
    most: float | None = None

    def met(self, figure: float) -> bool:
        return (self.least is None or figure >= self.least) and (self.most is None or figure <= self.most)


def _ratio(proxy: str, name: str) -> Callable[[Found], float | None]:
    return lambda found: found.get("compare", {}).get("ratios", {}).get(proxy, {}).get(name)


def _memory(found: Found) -> float | None:
    """None where the 1,024 streams were not run: the report then has the memory of a smaller load."""
    runs = {row["test"] for row in found.get("compare", {}).get("rows", [])}
    return _ratio("sidecar", "rss_mb")(found) if "S50x1024" in runs else None


def _ahead_of(peer: str) -> Callable[[Found], float | None]:
    def read(found: Found) -> float | None:
        own, other = (_ratio(proxy, "reqs_vs_nginx")(found) for proxy in ("sidecar", peer))
        return own / other if own is not None and other else None

    return read


def _refusal(found: Found) -> float | None:
    refused = found.get("refuse", {}).get("refuse")
    return refused["cpu_us_per_answer"] if refused else None


def _closed_after(found: Found) -> float | None:
    """Of the last of all streams and waiting requests; five seconds where one was never closed."""
    own = [one for one in found.get("disconnect", {}).get("disconnect", []) if one["proxy"] == "sidecar"]
    lasts = [one["last_ms"] if one["closed"] == one["streams"] else 5000.0 for one in own]
    return max(lasts, default=None)


def _growth(found: Found) -> float | None:
    own = [one["growth_bytes"] / 1e6 for one in found.get("stall", {}).get("stall", []) if one["proxy"] == "sidecar"]
    return max(own, default=None)


AIMS: Final = (
    Aim("requests per second per core, of nginx's", _ratio("sidecar", "reqs_vs_nginx"), least=0.6),
    Aim("... of Envoy's", _ahead_of("envoy"), least=1.0),
    Aim("... of vllm-router's", _ahead_of("vllm-router"), least=1.0),
    Aim("CPU per streamed chunk, of nginx's", _ratio("sidecar", "cpu_chunk_vs_nginx"), most=1.35),
    Aim("CPU per refusal on a kept connection, us", _refusal, most=30.0),
    Aim("memory at 1,024 streams, MB", _memory, most=64.0),
    Aim("from the client's end to the engine's, last of 64, ms", _closed_after, most=50.0),
    Aim("growth while a reader stops for 6 s, MB", _growth, most=1.0),
)


def judged(found: Found) -> list[dict[str, Any]]:
    """Every aim with its figure; both None where it was not measured."""
    rows = []
    for aim in AIMS:
        figure = aim.read(found)
        met = None if figure is None else aim.met(figure)
        rows.append({"aim": aim.name, "least": aim.least, "most": aim.most, "figure": figure, "met": met})
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """For people, one line for each."""
    lines = []
    for row in rows:
        bound = f"at least {row['least']:g}" if row["least"] is not None else f"at most {row['most']:g}"
        figure = "not measured" if row["figure"] is None else f"{row['figure']:.2f}"
        verdict = {None: "", True: "met", False: "MISSED"}[row["met"]]
        lines.append(f"{row['aim']:54} {figure:>12}   {bound:14} {verdict}")
    return "\n".join(lines)
