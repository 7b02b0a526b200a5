"""Sequences of numbers: of CREATE SEQUENCE, and of identity columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from derive.algebra.types import Type, TypeModifier
from derive.document.pointer import JSON
from derive.errors import SqlError
from derive.sql.parser.object_definitions import CreateSequence
from derive.sql.planner.interfaces import NamedColumn, Numbering

_BITS = {"int2": 15, "int4": 31, "int8": 63}
_SHORT_NAMES = {Type.SMALLINT: "int2", Type.INTEGER: "int4", Type.BIGINT: "int8"}
_TYPE_NAMES = {"int2": "smallint", "int4": "integer", "int8": "bigint"}


@dataclass(frozen=True, slots=True)
class Sequence:
    """The numbers of a sequence.

    Attributes:
        counter: identifier of the counter.
        start: first number.
        increment: distance of two numbers; not 0.
        least: least number.
        most: greatest number.
    """

    counter: int
    start: int
    increment: int
    least: int
    most: int

    def value(self, count: int) -> int:
        """Return the number for a value of the counter."""
        return self.start + (count - 1 if self.increment > 0 else 1 - count)

    def count(self, value: int) -> int:
        """Return the value of the counter for a number."""
        return 1 + (value - self.start if self.increment > 0 else self.start - value)

    def last_before(self, count: int) -> int:
        """Return the number that was given last, before the counter came to a value, which may be out of bounds."""
        last = self.value(count) - self.increment
        excess = last - self.most if self.increment > 0 else self.least - last
        step = abs(self.increment)
        return last - -(-max(excess, 0) // step) * self.increment

    @property
    def origin(self) -> dict[str, JSON]:
        """Return the sequence as an item keeps it."""
        return {name: getattr(self, name) for name in self.__slots__}


def planned_sequence(statement: CreateSequence, counter: int) -> Sequence:
    """Return the sequence of a CREATE SEQUENCE.

    Raises:
        SqlError: the type or an option is invalid (22023).
    """
    bits = _BITS.get(statement.type)
    if bits is None:
        raise SqlError("22023", "sequence type must be smallint, integer, or bigint", offset=statement.name.offset)
    increment = 1 if statement.increment is None else statement.increment
    if increment == 0:
        raise SqlError("22023", "INCREMENT must not be zero", offset=statement.name.offset)
    least, most = statement.least, statement.most
    if least is None:
        least = 1 if increment > 0 else -1 << bits
    if most is None:
        most = (1 << bits) - 1 if increment > 0 else -1
    for name, bound in (("MINVALUE", least), ("MAXVALUE", most)):
        if not -1 << bits <= bound < 1 << bits:
            message = f"{name} ({bound}) is out of range for sequence data type {_TYPE_NAMES[statement.type]}"
            raise SqlError("22023", message, offset=statement.name.offset)
    if least >= most:
        message = f"MINVALUE ({least}) must be less than MAXVALUE ({most})"
        raise SqlError("22023", message, offset=statement.name.offset)
    start = statement.start
    if start is None:
        start = least if increment > 0 else most
    if start < least:
        message = f"START value ({start}) cannot be less than MINVALUE ({least})"
        raise SqlError("22023", message, offset=statement.name.offset)
    if start > most:
        message = f"START value ({start}) cannot be greater than MAXVALUE ({most})"
        raise SqlError("22023", message, offset=statement.name.offset)
    return Sequence(counter, start, increment, least, most)


def largest(kind: Type) -> int:
    """Return the largest number of an integer type."""
    return (1 << _BITS[_SHORT_NAMES[kind]]) - 1


def numbering_of(table: str, column: NamedColumn) -> Numbering:
    """Return the sequence of an identity column.

    Args:
        table: name of the table.
        column: the column.
    """
    usual = Numbering(f"{table}_{column.name}_seq", 1, 1, 1, largest(column.type))
    return column.numbering or usual


def sequence_of_column(table: str, column: NamedColumn) -> Sequence:
    """Return the numbers of an identity column.

    Args:
        table: name of the table.
        column: the column.
    """
    own = numbering_of(table, column)
    return Sequence(column.counter, own.start, own.increment, own.least, own.most)


def with_sequence(
    table: str, column: NamedColumn, options: CreateSequence | None, is_taken: Callable[[str], bool]
) -> NamedColumn:
    """Return a new identity column with its sequence; another column unchanged.

    Args:
        table: name of the table.
        column: the column.
        options: options of the identity.
        is_taken: whether a relation has a name.

    Raises:
        SqlError: an option is invalid (22023), or another relation has the name of the sequence (42P07).
    """
    if column.identity is None:
        return column
    usual = numbering = numbering_of(table, replace(column, numbering=None))
    if options is not None:
        own = planned_sequence(replace(options, type=_SHORT_NAMES[column.type]), 0)
        numbering = Numbering(options.name.name or usual.name, own.start, own.increment, own.least, own.most)
    if options is not None and options.name.name:
        if is_taken(numbering.name):
            raise SqlError("42P07", f'relation "{numbering.name}" already exists', offset=options.name.offset)
    else:
        number = 0
        while is_taken(numbering.name):
            number += 1
            numbering = replace(numbering, name=f"{usual.name}{number}")
    return replace(column, numbering=None if numbering == usual else numbering)


def with_fixed_name(table: str, column: NamedColumn) -> NamedColumn:
    """Return a column whose sequence keeps its name if the table or the column gets another name."""
    return column if column.identity is None else replace(column, numbering=numbering_of(table, column))


def with_other_type(column: NamedColumn, kind: Type, modifier: TypeModifier | None) -> NamedColumn:
    """Return a column of another type; the largest number of its sequence becomes that of the type."""
    own = column.numbering
    if own is not None and own.most == largest(column.type):
        own = replace(own, most=largest(kind))
    return replace(column, type=kind, modifier=modifier, numbering=own)


def without_identity(column: NamedColumn) -> NamedColumn:
    """Return a column that gets no numbers."""
    return replace(column, identity=None, counter=0, numbering=None)


def with_type(most: int, name: str) -> int:
    """Return the largest number of a sequence for another type: that of the type, if it was that of its former type.

    Args:
        most: the present largest number.
        name: PostgreSQL's short name of the new type.

    Raises:
        SqlError: the sequence has other bounds, which the type does not have (22023).
    """
    if name not in _BITS:
        raise SqlError("22023", "sequence type must be smallint, integer, or bigint")
    bound = (1 << _BITS[name]) - 1
    if most in {(1 << bits) - 1 for bits in _BITS.values()}:
        return bound
    if most > bound:
        raise SqlError("22023", f"MAXVALUE ({most}) is out of range for sequence data type {_TYPE_NAMES[name]}")
    return most
