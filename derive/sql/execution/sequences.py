"""Sequences: their definitions, and the functions `nextval`, `currval`, `lastval` and `setval`.

A sequence counts with a counter, like an identity column. The counter advances by the size of the increment, from 1 on.
So each number is given once, also after a rollback or a kill, and a kill may skip numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from derive.algebra.types import Datum, Type
from derive.document.pointer import JSON
from derive.errors import SqlError
from derive.sql.catalog.items import Item
from derive.sql.catalog.snapshot import FIRST_OID
from derive.sql.execution.state import State
from derive.sql.parser.ast import CreateSequence
from derive.sql.parser.statement import ObjectKind
from derive.sql.pg_catalog.objects import numbered_sequence
from derive.sql.pg_catalog.snapshot import name_parts

_BITS = {"int2": 15, "int4": 31, "int8": 63}
_COLUMN_BITS = {Type.SMALLINT: 15, Type.INTEGER: 31, Type.BIGINT: 63}
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


def sequence_of(item: Item) -> Sequence:
    """Return the sequence of an item."""
    numbers = {name: value for name, value in item.origin.items() if isinstance(value, int)}
    return Sequence(**numbers)


async def restart(state: State, sequence: Sequence, value: int | None) -> None:
    """Let a sequence continue with a number; None for its first one."""
    count = 1 if value is None else sequence.count(value)
    await state.coordinator.counters.restart(sequence.counter, count)


SEQUENCE_FUNCTIONS = frozenset({"nextval", "currval", "lastval", "setval", "pg_sequence_last_value"})


async def call_sequence(state: State, name: str, arguments: tuple[Datum, ...]) -> Datum:
    """Execute a function of sequences, and return its value.

    Raises:
        SqlError: 42P01, the sequence does not exist; 42809, the relation is not a sequence; 2200H, the last number was
            given; 22003, the number is out of bounds; 55000, the session has got no number yet.
    """
    if name == "lastval":
        if state.last_sequence is None:
            raise SqlError("55000", "lastval is not yet defined in this session")
        return state.sequence_values[state.last_sequence]
    own, sequence = _sequence_named(state, arguments[0])
    match name, arguments[1:]:
        case "currval", ():
            if sequence.counter not in state.sequence_values:
                message = f'currval of sequence "{own}" is not yet defined in this session'
                raise SqlError("55000", message, hint="Call nextval first.")
            return state.sequence_values[sequence.counter]
        case "pg_sequence_last_value", ():
            count = await state.coordinator.counters.next(sequence.counter)
            last = None if count is None else sequence.value(count) - sequence.increment
            return None if last is None or (last - sequence.start) * sequence.increment < 0 else last
        case "setval", (int() as value, *is_called):
            state.transaction.check_writable()
            if not sequence.least <= value <= sequence.most:
                bounds = f"({sequence.least}..{sequence.most})"
                message = f'setval: value {value} is out of bounds for sequence "{own}" {bounds}'
                raise SqlError("22003", message)
            if is_called == [0]:
                await restart(state, sequence, value)
            else:
                await restart(state, sequence, value + sequence.increment)
                state.sequence_values[sequence.counter] = value
            return value
    state.transaction.check_writable()
    state.coordinator.own()
    step = abs(sequence.increment)
    value = sequence.value(await state.coordinator.counters.take(sequence.counter, step, unit=step))
    if not sequence.least <= value <= sequence.most:
        which, bound = ("maximum", sequence.most) if sequence.increment > 0 else ("minimum", sequence.least)
        raise SqlError("2200H", f'nextval: reached {which} value of sequence "{own}" ({bound})')
    state.sequence_values[sequence.counter], state.last_sequence = value, sequence.counter
    return value


def _sequence_named(state: State, target: Datum) -> tuple[str, Sequence]:
    """Return the name and the numbers of a sequence, given its name as SQL writes it, or its oid."""
    objects, shown = state.objects, str(target)
    *schemas, name = ["", ""] if isinstance(target, int) else name_parts(shown)
    schema = schemas[-1] if schemas else None
    item = objects.items.get(target - FIRST_OID) if isinstance(target, int) else objects.find(schema, name)
    if item is not None and item.kind is not ObjectKind.SEQUENCE:
        raise SqlError("42809", f'"{item.name}" is not a sequence')
    if item is not None:
        return item.name, sequence_of(item)
    visible = objects.path if schema is None else (schema,)
    for table in objects.items.values():
        for column in table.columns:
            numbered = numbered_sequence(table.id, table.name, column)
            if numbered is None:
                continue
            number, own = numbered
            if target == FIRST_OID + number if isinstance(target, int) else own == name and table.schema in visible:
                return own, Sequence(column.counter, 1, 1, 1, (1 << _COLUMN_BITS[column.type]) - 1)
    raise SqlError("42P01", f'relation "{shown}" does not exist')
