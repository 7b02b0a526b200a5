"""`OVERLAPS` of two periods, each given by two instants in any order.

A period with one NULL begins at the other instant, and its end is not known.
"""

from __future__ import annotations

from typing import TypeAlias

from derive.algebra.types import Datum, Type
from derive.functions.function import Function, Functions, word_of

FUNCTIONS = Functions()
OVERLAPS = "overlaps"
INSTANTS = (Type.TIME, Type.TIMETZ, Type.TIMESTAMP, Type.TIMESTAMPTZ)
"""Types of the instants."""

_Period: TypeAlias = tuple[int, int | None]


def _period(one: Datum, other: Datum) -> _Period | None:
    instants = sorted(int(instant) for instant in (one, other) if instant is not None)
    if not instants:
        return None
    return instants[0], instants[1] if len(instants) > 1 else None


def _overlaps(begin: Datum, end: Datum, other_begin: Datum, other_end: Datum) -> Datum:
    """Return whether two periods have an instant in common; None if that depends on an unknown instant."""
    own, other = _period(begin, end), _period(other_begin, other_end)
    if own is None or other is None:
        return None
    (first, end_of_first), (second, end_of_second) = sorted((own, other), key=lambda period: period[0])
    if first == second:
        return None if end_of_first is None or end_of_second is None else 1
    if end_of_first is None:
        return None
    if second < end_of_first:
        return 1
    return None if end_of_second is None else 0


for kind in INSTANTS:
    name = f"{OVERLAPS}_{word_of(kind)}"
    FUNCTIONS.add(Function(name, OVERLAPS, (kind,) * 4, Type.BOOLEAN, _overlaps, can_fail=False))
