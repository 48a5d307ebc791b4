"""How a value that a user wrote is shown in a message. Pure."""

from __future__ import annotations

from typing import Final

MAX_QUOTED: Final = 60  # characters: enough to recognise a value; a message must fit in a condition whatever it is


def quoted(value: object) -> str:
    """The value as Python writes it, at most MAX_QUOTED characters."""
    try:
        text = repr(value)
    except ValueError:  # Python does not write an integer of more than 4300 digits
        return "a number of thousands of digits"
    except RecursionError:
        return "a value of thousands of levels"
    return text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 1] + "…"
