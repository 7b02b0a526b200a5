"""Bounded caches."""

from __future__ import annotations

from dataclasses import dataclass

from derive.recently_used import cached_by_identity


@dataclass(frozen=True, slots=True)
class _Value:
    number: int


def test_function_of_an_object_is_called_once_for_each_object() -> None:
    """An object that is equal to another one may differ in parts that comparisons leave out."""
    called: list[int] = []

    @cached_by_identity
    def doubled(value: _Value) -> int:
        called.append(value.number)
        return 2 * value.number

    first, equal = _Value(1), _Value(1)
    assert [doubled(value) for value in (first, equal, first, equal)] == [2, 2, 2, 2]
    assert called == [1, 1]

    others = [_Value(number) for number in range(2, 65)]
    assert [doubled(value) for value in others] == [2 * value.number for value in others]
    called.clear()
    assert [doubled(value) for value in (equal, first)] == [2, 2]  # the one that was used first has gone
    assert called == [1]
