"""How time is handed in: monotonic seconds for durations, Unix seconds for what people read."""

from collections.abc import Callable

Clock = Callable[[], float]
