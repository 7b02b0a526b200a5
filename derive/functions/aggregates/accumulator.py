"""State of aggregates for rows that come and go.

A state is a row of columns. What rows add to it is an aggregate of each column over them and their weights, negative
for rows that go; states are added column by column. `min`, `max` and what else depends on more than sums has no such
state, and is worked out from the multiset of values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from derive.algebra.types import Type
from derive.functions.function import Function, registered_name

AggregateForm: TypeAlias = Callable[[Sequence[str], str], str]
"""SQL over rows, given that of the arguments, and what follows every aggregate: FILTER, OVER."""


@dataclass(frozen=True, slots=True)
class Accumulator:
    """State of an aggregate, as columns.

    Attributes:
        empty: SQL of the columns for no rows.
        delta: from SQL of the arguments and of a row's weight, an aggregate for each column: what rows add to it.
        merged: from SQL of two states, one of their sum: a column for each.
        result: from SQL of a state, that of the aggregate's value.
    """

    empty: tuple[str, ...]
    delta: Callable[[Sequence[str], str], tuple[str, ...]]
    merged: Callable[[Sequence[str], Sequence[str]], tuple[str, ...]]
    result: Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class AggregateFunction:
    """An aggregate of arguments of certain types.

    Attributes:
        signature: its name, symbol and types.
        form: its SQL.
        accumulator: None if it has no state that rows can be taken from.
        is_ordered: whether its value depends on the order of rows.
        conversions: what makes SQL of an argument of some type what the function in Python takes; none if empty.
    """

    signature: Function
    form: AggregateForm
    accumulator: Accumulator | None = None
    is_ordered: bool = False
    conversions: tuple[Callable[[str, Type], str], ...] = ()


def added(left: Sequence[str], right: Sequence[str]) -> tuple[str, ...]:
    """SQL of the sums of numbers in two states."""
    return tuple(f"{one} + {other}" for one, other in zip(left, right, strict=True))


def python_form(name: str) -> AggregateForm:
    """The form of an aggregate in Python."""
    return lambda arguments, suffix: f"{registered_name(name)}({', '.join(arguments)}){suffix}"


def counter(argument: str, weight: str) -> str:
    """How many values other than NULL rows add."""
    return f"sum(iif({argument} IS NULL, 0, {weight}))"


def weighted(argument: str, condition: str, weight: str) -> str:
    """How many values of which a condition is true rows add."""
    return f"sum(iif({argument} {condition}, {weight}, 0))"


def of_halves(result: str) -> Accumulator:
    """For integers: how many, and the sums of their upper and lower 32 bits, none of which overflows."""
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
    """For doubles and numeric: how many, the sum of those that are finite, and how many there are of the others."""

    def delta(arguments: Sequence[str], weight: str) -> tuple[str, ...]:
        counts = (weighted(arguments[0], f"= {special}", weight) for special in specials)
        return (counter(arguments[0], weight), f"{fold}({arguments[0]}, {weight})", *counts)

    def merged(left: Sequence[str], right: Sequence[str]) -> tuple[str, ...]:
        counts = added(left, right)
        return (counts[0], f"{add}({left[1]}, {right[1]})", *counts[2:])

    return Accumulator(("0", empty, "0", "0", "0"), delta, merged, lambda state: f"{result}({', '.join(state)})")


def of_squares(folds: tuple[str, str], add: str, result: str, empty: str, specials: tuple[str, ...]) -> Accumulator:
    """For variances: how many, the sums of those that are finite and of their squares, and how many are not finite."""

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
    """A count, which rows add to as the form says."""
    return Accumulator(("0",), lambda arguments, weight: (form(arguments, weight),), added, lambda state: state[0])


def of_truths(result: str) -> Accumulator:
    """For booleans: how many are true, and how many are false."""
    return Accumulator(
        ("0", "0"),
        lambda arguments, weight: (
            weighted(arguments[0], "IS TRUE", weight),
            weighted(arguments[0], "IS FALSE", weight),
        ),
        added,
        lambda state: result.format(*state),
    )
