"""Spans of time that are written as texts, such as `1s` or `500 milliseconds`."""

from __future__ import annotations

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.types.values import datum_of_text, text_of

_UNITS = {"day": 86_400_000_000, "days": 86_400_000_000}


def micros_of(text: str, offset: int | None = None) -> int:
    """The microseconds of an interval, which has no months.

    Raises:
        SqlError: 22007, the text is no interval; 22023, it has months, or is negative.
    """
    words = text_of(Type.INTERVAL, datum_of_text(Type.INTERVAL, text)).split()
    micros = 0
    while words:
        word = words.pop(0)
        if ":" in word and not word.startswith("-"):
            hours, minutes, seconds = word.split(":")
            micros += (int(hours) * 3600 + int(minutes) * 60) * 1_000_000 + round(float(seconds) * 1_000_000)
        elif words and word.isdigit() and words[0] in _UNITS:
            micros += int(word) * _UNITS[words.pop(0)]
        else:
            raise SqlError("22023", f"'{text}' is no span of days, hours, minutes or seconds", offset=offset)
    return micros
