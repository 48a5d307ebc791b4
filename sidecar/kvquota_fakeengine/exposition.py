"""Metrics in the text format of Prometheus."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

_RENAMED_PREFIX = "engine_core_"

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its kind (`gauge` or `counter`), and a value for each set of labels."""

    name: str
    kind: str
    help: str
    samples: Sequence[tuple[Labels, float]]

    def text(self) -> str:
        lines = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} {self.kind}"]
        lines += [f"{self.name}{_labels(labels)} {float(value)!r}" for labels, value in self.samples]
        return "\n".join(lines) + "\n"


def process_families(started_at: float) -> list[Family]:
    """What any Python process exposes; `started_at` is UTC seconds."""
    told = "Start time of the process since unix epoch in seconds."
    return [Family("process_start_time_seconds", "gauge", told, [({}, started_at)])]


def renamed(families: Sequence[Family]) -> list[Family]:
    """The same numbers under names that no table of known names has."""
    return [Family(_RENAMED_PREFIX + f.name.partition(":")[2], f.kind, f.help, f.samples) for f in families]


def exposition(families: Sequence[Family]) -> str:
    return "".join(family.text() for family in families)


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
