"""Types of `$1` and so on, which follow from where they stand if nobody says them."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.expression import Parameter
from derive.algebra.types import Type
from derive.errors import SqlError


class ParameterTypes:
    """What is known of a statement's parameters while it is planned."""

    def __init__(self, given: Sequence[Type | None] = ()) -> None:
        self._types: dict[int, Type] = {index: kind for index, kind in enumerate(given) if kind}
        self._count = len(given)
        self._offsets: dict[int, int] = {}

    def reference(self, index: int, offset: int) -> Parameter:
        """A parameter where it is used; of the type that is known so far."""
        self._count = max(self._count, index + 1)
        self._offsets.setdefault(index, offset)
        return Parameter(index, self._types.get(index, Type.UNKNOWN))

    def decide(self, index: int, kind: Type) -> Parameter:
        """A parameter where a type is expected; the first one counts.

        Raises:
            SqlError: 42P08, another type was decided meanwhile.
        """
        decided = self._types.setdefault(index, kind)
        if decided is not kind:
            message = f"inconsistent types deduced for parameter ${index + 1}"
            detail = f"{decided.value} versus {kind.value}"
            raise SqlError("42P08", message, offset=self._offsets.get(index), detail=detail)
        return Parameter(index, decided)

    def finish(self) -> tuple[Type, ...]:
        """The types of all parameters.

        Raises:
            SqlError: 42P18, nothing has decided one.
        """
        for index in range(self._count):
            if index not in self._types:
                message = f"could not determine data type of parameter ${index + 1}"
                hint = f"Write ${index + 1}::text, or whatever its type is."
                raise SqlError("42P18", message, offset=self._offsets.get(index), hint=hint)
        return tuple(self._types[index] for index in range(self._count))
