"""Incremental states of aggregates, for inserted and deleted rows.

A state is a row of columns. The contribution of rows is an aggregate of each column over the rows and their weights,
which are negative for deleted rows; states are added column by column. `min`, `max` and other aggregates that depend on
more than sums have no such state, and are computed from the multiset of values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from derive.algebra.types import Type
from derive.functions.function import Function, registered_name

AggregateForm: TypeAlias = Callable[[Sequence[str], str], str]
"""A function that returns SQL of an aggregate, given SQL of the arguments and the suffix: FILTER, OVER."""


@dataclass(frozen=True, slots=True)
class Accumulator:
    """The state of an aggregate, as columns.

    Attributes:
        empty: SQL of the columns without rows.
        delta: returns, from SQL of the arguments and of a row's weight, the contribution of rows to each column.
        merged: returns, from SQL of two states, SQL of each column of their sum.
        result: returns, from SQL of a state, SQL of the aggregate's value.
    """

    empty: tuple[str, ...]
    delta: Callable[[Sequence[str], str], tuple[str, ...]]
    merged: Callable[[Sequence[str], Sequence[str]], tuple[str, ...]]
    result: Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class AggregateFunction:
    """An aggregate for arguments of certain types.

    Attributes:
        signature: its name, symbol and types.
        form: returns its SQL.
        accumulator: its incremental state; None without one.
        is_ordered: whether its value depends on the order of rows.
        conversions: functions from SQL of each argument and its type to SQL for the Python function; empty for none.
    """

    signature: Function
    form: AggregateForm
    accumulator: Accumulator | None = None
    is_ordered: bool = False
    conversions: tuple[Callable[[str, Type], str], ...] = ()


def added(left: Sequence[str], right: Sequence[str]) -> tuple[str, ...]:
    """Return SQL of the sums of numbers in two states."""
    return tuple(f"{one} + {other}" for one, other in zip(left, right, strict=True))


def python_form(name: str) -> AggregateForm:
    """Return the form of an aggregate in Python."""
    return lambda arguments, suffix: f"{registered_name(name)}({', '.join(arguments)}){suffix}"


def counter(argument: str, weight: str) -> str:
    """Return SQL of the number of non-NULL values in rows."""
    return f"sum(iif({argument} IS NULL, 0, {weight}))"


def weighted(argument: str, condition: str, weight: str) -> str:
    """Return SQL of the number of values that fulfil a condition in rows."""
    return f"sum(iif({argument} {condition}, {weight}, 0))"


def of_halves(result: str) -> Accumulator:
    """Return the state of integers: count, and the sums of their upper and lower 32 bits, which cannot overflow."""
    return Accumulator(
        ("0", "0", "0"),
        lambda arguments, weight: (
            counter(arguments[0], weight),
            f"coalesce(sum(({arguments[0]} >> 32) * {weight}), 0)",
            f"coalesce(sum(({arguments[0]} & 4294967295) * {weight}), 0)",
        ),
        added,
        lambda state: result.format(*state),
    )


def of_sums(fold: str, add: str, result: str, empty: str, specials: tuple[str, str, str]) -> Accumulator:
    """Return the state of doubles or numeric: count, sum of the finite values, and counts of the others."""

    def delta(arguments: Sequence[str], weight: str) -> tuple[str, ...]:
        counts = (weighted(arguments[0], f"= {special}", weight) for special in specials)
        return (counter(arguments[0], weight), f"{fold}({arguments[0]}, {weight})", *counts)

    def merged(left: Sequence[str], right: Sequence[str]) -> tuple[str, ...]:
        counts = added(left, right)
        return (counts[0], f"{add}({left[1]}, {right[1]})", *counts[2:])

    return Accumulator(("0", empty, "0", "0", "0"), delta, merged, lambda state: f"{result}({', '.join(state)})")


def of_squares(folds: tuple[str, str], add: str, result: str, empty: str, specials: tuple[str, ...]) -> Accumulator:
    """Return the state of variances: count, sums of the finite values and of their squares, and count of the others."""

    def delta(arguments: Sequence[str], weight: str) -> tuple[str, ...]:
        sums = (f"{fold}({arguments[0]}, {weight})" for fold in folds)
        others = weighted(arguments[0], f"IN ({', '.join(specials)})", weight)
        return (counter(arguments[0], weight), *sums, others)

    def merged(left: Sequence[str], right: Sequence[str]) -> tuple[str, ...]:
        counts = added(left, right)
        sums = (f"{add}({left[index]}, {right[index]})" for index in (1, 2))
        return (counts[0], *sums, counts[3])

    return Accumulator(("0", empty, empty, "0"), delta, merged, lambda state: f"{result}, {', '.join(state)})")


def of_counts(form: Callable[[Sequence[str], str], str]) -> Accumulator:
    """Return the state of a count, with a given contribution of rows."""
    return Accumulator(("0",), lambda arguments, weight: (form(arguments, weight),), added, lambda state: state[0])


def of_truths(result: str) -> Accumulator:
    """Return the state of booleans: counts of true and false."""
    return Accumulator(
        ("0", "0"),
        lambda arguments, weight: (
            weighted(arguments[0], "IS TRUE", weight),
            weighted(arguments[0], "IS FALSE", weight),
        ),
        added,
        lambda state: result.format(*state),
    )
