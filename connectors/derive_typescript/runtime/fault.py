"""JavaScript values that the runtime does not accept: lone surrogates, and numbers that are too large.

The search runs only if an answer does not parse, so valid documents cost nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_MOST_DIGITS = 4_300
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Fault:
    """A value that does not parse.

    Attributes:
        path: property names and indexes on the way to the value.
        reason: the reason, as a text to follow its name.
    """

    path: tuple[str | int, ...]
    reason: str

    @property
    def row(self) -> int:
        """Return the value's index in the outermost array; 0 if it is in none."""
        first = self.path[0] if self.path else 0
        return first if isinstance(first, int) else 0

    def at(self, skipped: int) -> str:
        """Return the value's place as a JSON pointer, without `skipped` outermost steps."""
        steps = [str(step).encode("utf-8", "replace").decode() for step in self.path[skipped:]]
        return "".join(f"/{step}" for step in steps)[:_SHOWN] or "a value"


@dataclass(frozen=True, slots=True)
class _Wide:
    digits: int


def fault_in(text: bytes) -> Fault | None:
    r"""Return the first fault of a JSON text; None if the text has no fault or another one.

    >>> fault_in(rb'[[{"a": ["\ud83d"]}]]').at(2)
    '/a/0'
    """
    try:
        value = json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError):
        return None
    return next(_faults(value, ()), None)


def _integer(digits: str) -> int | _Wide:
    return int(digits) if len(digits) <= _MOST_DIGITS else _Wide(len(digits))


def _faults(value: Any, path: tuple[str | int, ...]) -> Iterator[Fault]:
    if isinstance(value, str) and _is_broken(value):
        yield Fault(path, f"holds {_half(value)}, which no text in UTF-8 can")
    elif isinstance(value, float) and value - value != 0:
        yield Fault(path, "is a number beyond a double's range")
    elif isinstance(value, _Wide):
        yield Fault(path, f"is an integer of {value.digits} digits; {_MOST_DIGITS} at most")
    elif isinstance(value, list):
        for place, member in enumerate(value):
            yield from _faults(member, (*path, place))
    elif isinstance(value, dict):
        for name, member in value.items():
            if _is_broken(name):
                yield Fault((*path, name), f"is a name with {_half(name)}, which no text in UTF-8 can hold")
            yield from _faults(member, (*path, name))


def _is_broken(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _half(text: str) -> str:
    half = next(character for character in text if "\ud800" <= character <= "\udfff")
    return f"half of a character (\\u{ord(half):04x})"
