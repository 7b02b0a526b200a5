"""Conditional annotations: the later value decides which strategy applies.

The later value may itself be the reduction of a part of a history. If the reduction would choose another strategy than
its parts, the parts must stay separate for law L6. For example, `sum` for the value 1 and `lastWriteWins` for other
values reduce 1, 1, 1 to 3 one by one, and to 2 if the last two are reduced first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from derive.document.pointer import JSON, MISSING
from derive.reduce.applied import Condition, Part
from derive.reduce.reducer import NotAssociative, Reduce, ReductionFailed


@dataclass(frozen=True, slots=True)
class Chosen:
    """The reducer that was chosen for a value.

    Attributes:
        reduce: the reducer.
        nature: value that is equal for equivalent reducers.
        takes_right: true if the result is the later value, or nothing.
        deletes: true if a full reduction removes the location.
    """

    reduce: Reduce
    nature: Any
    takes_right: bool
    deletes: bool

    @property
    def replaces(self) -> bool:
        """Return true if the result is always the later value."""
        return self.takes_right and not self.deletes


def compile_choice(
    conditions: tuple[Condition, ...], choose: Callable[[Iterable[Part]], Chosen], *, full_differs: bool
) -> Reduce:
    """Return the reducer of a location whose annotations depend on the value.

    Args:
        conditions: conditions of the annotations.
        choose: returns the reducer for the applying parts of the schema; called once per combination.
        full_differs: true if a full reduction below may differ from a partial one.
    """
    decide = _compile_decision(conditions)
    known: dict[tuple[bool, ...], Chosen] = {}

    def chosen_for(value: JSON) -> Chosen:
        outcome = decide(value)
        chosen = known.get(outcome)
        if chosen is None:
            chosen = known[outcome] = choose(_applying(conditions, iter(outcome)))
        return chosen

    def reduce(left: JSON, right: JSON, full: bool) -> JSON:
        chosen = chosen_for(right)
        if full or left is MISSING or chosen.takes_right:
            return chosen.reduce(left, right, full)
        before = chosen_for(left)
        same = chosen.nature == before.nature
        try:
            reduced = chosen.reduce(left, right, full)
        except ReductionFailed:
            if same:
                raise
            raise NotAssociative from None  # the earlier value may have disappeared by then
        after = chosen_for(reduced)
        if after.nature == chosen.nature and (same or chosen.deletes):
            return reduced
        if full_differs or not (before.replaces and after.replaces):
            raise NotAssociative
        return reduced

    return reduce


def _compile_decision(conditions: tuple[Condition, ...]) -> Callable[[JSON], tuple[bool, ...]]:
    """Return a function from a value to the conditions that it meets, in evaluation order."""
    if all(not condition.then.conditions and not condition.otherwise.conditions for condition in conditions):
        tests = [condition.holds for condition in conditions]
        if len(tests) == 1:
            (test,) = tests
            return lambda value: (test(value),)
        return lambda value: tuple([test(value) for test in tests])
    return lambda value: tuple(_outcome(conditions, value))


def _outcome(conditions: tuple[Condition, ...], value: JSON) -> Iterator[bool]:
    for condition in conditions:
        held = condition.holds(value)
        yield held
        yield from _outcome((condition.then if held else condition.otherwise).conditions, value)


def _applying(conditions: tuple[Condition, ...], outcome: Iterator[bool]) -> Iterator[Part]:
    for condition in conditions:
        applied = condition.then if next(outcome) else condition.otherwise
        yield from applied.parts
        yield from _applying(applied.conditions, outcome)
