"""Validity: the times at which a temporal filter is true for a row.

A temporal filter compares the time of the read, `mz_now()`, with values of the row. A comparison is solved for the
time: it is true from a *begin* on, or before an *end*. For example, `at > now() - INTERVAL '5 minutes'` is true before
the end `at + INTERVAL '5 minutes'`. So changes of the filter's rows are known in advance.

The time may be inside functions that never decrease while the time increases: sums with intervals of days and hours,
casts to dates, and `date_trunc`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from derive.algebra.expression import Call, Column, Expression, Literal, OuterColumn, Parameter
from derive.algebra.relation import Constant
from derive.algebra.rewrite import conjuncts, has_subquery
from derive.algebra.types import Type
from derive.functions.registry import READ_TIME, evaluate, is_volatile
from derive.functions.scalar.validity import MOST_MOVED
from derive.functions.types.datetime import DAY, interval_of


@dataclass(frozen=True, slots=True)
class Validity:
    """The times of a row: from all begins on, and before all ends. With a NULL, the row has no times.

    Attributes:
        begins: timestamps, in microseconds.
        ends: timestamps, in microseconds.
    """

    begins: tuple[Expression, ...] = ()
    ends: tuple[Expression, ...] = ()

    def both(self, other: Validity) -> Validity:
        """Return the validity of a conjunction."""
        return Validity(self.begins + other.begins, self.ends + other.ends)

    @property
    def bounds(self) -> tuple[Expression, ...]:
        """Return the begins, followed by the ends."""
        return self.begins + self.ends


def reads_time(node: Any) -> bool:
    """Return whether a part of a relation, plan or expression is the time of the read, also in subqueries."""
    if isinstance(node, Call) and node.function == READ_TIME:
        return True
    if isinstance(node, tuple):
        return any(map(reads_time, node))
    if not is_dataclass(node) or isinstance(node, Constant | Column | OuterColumn | Literal | Parameter):
        return False
    return any(reads_time(getattr(node, item.name)) for item in fields(node))


def split(predicates: Sequence[Expression]) -> tuple[list[tuple[Expression, Validity]], list[Expression]]:
    """Split conjuncts into temporal filters with their validity, and other predicates."""
    temporal, others = [], []
    for part in (part for predicate in predicates for part in conjuncts(predicate)):
        validity = _validity(part) if reads_time(part) else None
        if validity is None:
            others.append(part)
        else:
            temporal.append((part, validity))
    return temporal, others


_MIRRORED = {"less": "greater", "at_most": "at_least", "greater": "less", "at_least": "at_most", "equal": "equal"}
_NEGATED = {"less": "at_least", "at_most": "greater", "greater": "at_most", "at_least": "less"}
_KINDS = ("timestamptz", "timestamp", "date", "interval")


def _validity(predicate: Expression) -> Validity | None:
    """Return the validity of a comparison; None if it cannot be solved for the time."""
    if not isinstance(predicate, Call) or has_subquery(predicate):
        return None
    if predicate.function == "not" and isinstance(predicate.arguments[0], Call):
        inner = predicate.arguments[0]
        word, _, kind = inner.function.rpartition("_")
        opposite = _NEGATED.get(word)
        return _validity(replace(inner, function=f"{opposite}_{kind}")) if opposite else None
    word, _, kind = predicate.function.rpartition("_")
    if word not in _MIRRORED or kind not in _KINDS or len(predicate.arguments) != 2:
        return None
    left, right = predicate.arguments
    if reads_time(left) == reads_time(right):
        return None
    if reads_time(right):
        left, right, word = right, left, _MIRRORED[word]
    if kind == "interval":
        return _of_distance(left, word, right)
    return _compared(left, word, right, lambda count: _moved(right, count))


def _compared(time: Expression, word: str, value: Expression, moved: Callable[[int], Expression]) -> Validity | None:
    """Return the validity of `time word value`; `moved` returns the value, moved by some of its smallest units."""
    begins, ends = [], []
    if word in {"at_least", "equal"}:
        begins.append(value)
    if word == "greater":
        begins.append(moved(1))
    if word == "less":
        ends.append(value)
    if word in {"at_most", "equal"}:
        ends.append(moved(1))
    first = [_solved(time, limit) for limit in begins]
    last = [_solved(time, limit) for limit in ends]
    kept = Validity(tuple(limit for limit in first if limit), tuple(limit for limit in last if limit))
    return kept if len(kept.bounds) == len(begins) + len(ends) else None


def _of_distance(distance: Expression, word: str, interval: Expression) -> Validity | None:
    """Return the validity of a comparison of `now() - begin` or `end - now()` with an interval."""
    if not isinstance(distance, Call) or distance.function not in {"subtract_timestamptz", "subtract_timestamp"}:
        return None
    left, right = distance.arguments
    if reads_time(left) == reads_time(right):
        return None
    time, other = (left, right) if reads_time(left) else (right, left)
    name = "time_elapsed" if time is left else "time_ahead"

    def moved(count: int) -> Expression:
        name_of_function = f"{name}_timestamptz_interval_bigint"
        return Call(name_of_function, (other, interval, Literal(count, Type.BIGINT)), time.type)

    return _compared(time, word if time is left else _MIRRORED[word], moved(0), moved)


def _solved(time: Expression, limit: Expression) -> Expression | None:  # noqa: PLR0911 (one for each function)
    """Return the first time of a read at which `time` is not less than `limit`; None if that is unknown.

    Args:
        time: an expression of the time of the read that never decreases.
        limit: an expression of a row, of the same type.
    """
    if not isinstance(time, Call):
        return None
    if time.function == READ_TIME:
        return limit
    arguments = time.arguments
    match time.function:
        case "timestamptz_to_timestamp" | "timestamp_to_timestamptz":
            return _solved(arguments[0], limit)
        case "timestamptz_to_date" | "timestamp_to_date":
            return _solved(arguments[0], Call("date_begin_date", (limit,), arguments[0].type))
        case "date_to_timestamptz" | "date_to_timestamp":
            return _solved(arguments[0], Call("first_date_timestamptz", (limit,), Type.DATE))
        case "date_trunc_text_timestamptz" | "date_trunc_text_timestamp" if isinstance(arguments[0], Literal):
            begin = Call("first_truncated_text_timestamptz", (arguments[0], limit), limit.type)
            return _solved(arguments[1], begin)
    return _solved_sum(time, limit)


_SUMS = {
    "add_timestamptz_interval": (0, 1, -1),
    "add_timestamp_interval": (0, 1, -1),
    "date_add_timestamptz_interval": (0, 1, -1),
    "add_interval_timestamptz": (1, 0, -1),
    "add_interval_timestamp": (1, 0, -1),
    "subtract_timestamptz_interval": (0, 1, 1),
    "subtract_timestamp_interval": (0, 1, 1),
    "date_subtract_timestamptz_interval": (0, 1, 1),
    "add_date_integer": (0, 1, -1),
    "add_integer_date": (1, 0, -1),
    "subtract_date_integer": (0, 1, 1),
    "add_date_interval": (0, 1, -1),
    "add_interval_date": (1, 0, -1),
    "subtract_date_interval": (0, 1, 1),
}
"""For each sum of a time: the indexes of the time and of the summand, and the sign with which a limit is moved."""


def _solved_sum(time: Call, limit: Expression) -> Expression | None:
    """Return the first time at which a sum is not less than a limit; its other summand must be constant."""
    if time.function not in _SUMS:
        return None
    own, other, sign = _SUMS[time.function]
    source, summand = time.arguments[own], time.arguments[other]
    count = _constant(summand)
    if count is None:
        return None
    moved = _moved(limit, sign * count)
    if source.type is Type.DATE and limit.type is not Type.DATE:
        moved = Call("first_date_timestamptz", (moved,), Type.DATE)
    return _solved(source, moved)


def _constant(summand: Expression) -> int | None:
    """Return a constant number of days, or a constant interval in microseconds; None for anything else.

    An interval of months has no constant length: a later time plus a month may be earlier, at the end of a month.
    """
    if not _is_constant(summand) or is_volatile(summand):
        return None
    datum = evaluate(summand)
    if isinstance(datum, bytes):
        interval = interval_of(datum)
        return None if interval.months else interval.days * DAY + interval.microseconds
    return datum if isinstance(datum, int) else None


def _is_constant(expression: Expression) -> bool:
    if isinstance(expression, Call):
        return all(map(_is_constant, expression.arguments))
    return isinstance(expression, Literal)


def _moved(limit: Expression, count: int) -> Expression:
    """Return a limit that is moved by microseconds, or by days if it is a date."""
    if not count:
        return limit
    name = "date_moved_date_bigint" if limit.type is Type.DATE else "time_moved_timestamptz_bigint"
    within = max(-MOST_MOVED, min(count, MOST_MOVED))
    return Call(name, (limit, Literal(within, Type.BIGINT)), limit.type)
