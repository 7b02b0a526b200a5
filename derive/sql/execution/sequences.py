"""Sequences: their definitions, and the functions `nextval`, `currval`, `lastval` and `setval`.

A sequence counts with a counter, like an identity column. The counter advances by the size of the increment, from 1 on.
So each number is given once, also after a rollback or a kill, and a kill may skip numbers.
"""

from __future__ import annotations

from derive.algebra.types import Datum
from derive.errors import SqlError
from derive.sql.catalog.items import Item
from derive.sql.catalog.snapshot import FIRST_OID
from derive.sql.execution.state import State
from derive.sql.parser.statement import ObjectKind
from derive.sql.pg_catalog.snapshot import name_parts
from derive.sql.planner.interfaces import NamedColumn
from derive.sql.planner.sequences import Sequence, largest, numbering_of, sequence_of_column


def sequence_of(item: Item) -> Sequence:
    """Return the sequence of an item."""
    numbers = {name: value for name, value in item.origin.items() if isinstance(value, int)}
    return Sequence(**numbers)


async def restart(state: State, sequence: Sequence, value: int | None) -> None:
    """Let a sequence continue with a number; None for its first one.

    Raises:
        SqlError: the number is out of bounds (22023).
    """
    if value is not None and not sequence.least <= value <= sequence.most:
        less = value < sequence.least
        bound = f"less than MINVALUE ({sequence.least})" if less else f"greater than MAXVALUE ({sequence.most})"
        raise SqlError("22023", f"RESTART value ({value}) cannot be {bound}")
    await _continue(state, sequence, value)


async def _continue(state: State, sequence: Sequence, value: int | None) -> None:
    count = 1 if value is None else sequence.count(value)
    await state.coordinator.counters.restart(sequence.counter, count)


async def column_numbers(state: State, table: str, column: NamedColumn, count: int) -> range:
    """Return the next numbers of an identity column.

    Args:
        state: state of the session, whose `lastval()` will be the last number.
        table: name of the table.
        column: the column.
        count: number of numbers, at least 1.

    Raises:
        SqlError: 2200H, the sequence has fewer numbers left; 22003, a number is out of the range of the column's type.
    """
    sequence = sequence_of_column(table, column)
    step = abs(sequence.increment)
    first = sequence.value(await state.coordinator.counters.take(column.counter, step * count, unit=step))
    last = first + (count - 1) * sequence.increment
    if not sequence.least <= last <= sequence.most:
        raise _exhausted(numbering_of(table, column).name, sequence)
    if last > largest(column.type):
        raise SqlError("22003", f"{column.type.value} out of range")
    state.sequence_values[column.counter], state.last_sequence = last, column.counter
    return range(first, last + (1 if sequence.increment > 0 else -1), sequence.increment)


def _exhausted(name: str, sequence: Sequence) -> SqlError:
    which, bound = ("maximum", sequence.most) if sequence.increment > 0 else ("minimum", sequence.least)
    return SqlError("2200H", f'nextval: reached {which} value of sequence "{name}" ({bound})')


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
            last = None if count is None else sequence.last_before(count)
            return None if last is None or (last - sequence.start) * sequence.increment < 0 else last
        case "setval", (int() as value, *is_called):
            state.transaction.check_writable()
            if not sequence.least <= value <= sequence.most:
                bounds = f"({sequence.least}..{sequence.most})"
                message = f'setval: value {value} is out of bounds for sequence "{own}" {bounds}'
                raise SqlError("22003", message)
            if is_called == [0]:
                await _continue(state, sequence, value)
            else:
                await _continue(state, sequence, value + sequence.increment)
                state.sequence_values[sequence.counter] = value
            return value
    state.transaction.check_writable()
    state.coordinator.own()
    step = abs(sequence.increment)
    value = sequence.value(await state.coordinator.counters.take(sequence.counter, step, unit=step))
    if not sequence.least <= value <= sequence.most:
        raise _exhausted(own, sequence)
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
    if isinstance(target, int):
        columns = objects.identity_sequences.values()
        numbered = next((one for one in columns if one.id == target - FIRST_OID), None)
    else:
        numbered = objects.identity_sequence(schema, name)
    if numbered is not None:
        return numbered.name, numbered.sequence
    raise SqlError("42P01", f'relation "{shown}" does not exist')
