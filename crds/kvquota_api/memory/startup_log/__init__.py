"""What an engine's start-up log says, and where it differs from a plan of that engine."""

from kvquota_api.memory.startup_log.cases import PlannedMemory, Subject
from kvquota_api.memory.startup_log.comparing import Difference, Verdict, compare
from kvquota_api.memory.startup_log.facts import LogFacts
from kvquota_api.memory.startup_log.figures import Size
from kvquota_api.memory.startup_log.reading import parse_log
from kvquota_api.memory.startup_log.stating import card_memory, facts_to_inputs, kv_memory, memory_fraction, model_name

__all__ = [
    "Difference",
    "LogFacts",
    "PlannedMemory",
    "Size",
    "Subject",
    "Verdict",
    "card_memory",
    "compare",
    "facts_to_inputs",
    "kv_memory",
    "memory_fraction",
    "model_name",
    "parse_log",
]
