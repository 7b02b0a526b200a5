"""Definitions of sources: relations whose rows come from collections, files or the load generator COUNTER."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from derive.algebra.relation import GlobalId
from derive.algebra.types import Row, Type
from derive.document.pointer import JSON
from derive.errors import SqlError, suggest
from derive.functions.types.type_info import datum_of_text, text_of
from derive.sql.catalog.items import Item
from derive.sql.catalog.snapshot import Objects
from derive.sql.parser.statement import CollectionSource, CounterSource, CreateSource, FileSource
from derive.sql.planner.ddl import columns_of_definitions, refuse_constraints
from derive.sql.planner.interfaces import NamedColumn, RelationKind
from derive.sql.sources import followed_file
from derive.sql.sources.followed_file import FileAccess, FileFormat, FilePosition, FollowedFile

COUNTER_COLUMNS = (("counter", Type.BIGINT),)
"""Name and type of the source's column."""

_MOST_ROWS = 10_000


class CounterPosition(NamedTuple):
    """The position of a counter; its fields are the columns of the position table.

    Attributes:
        added: number of rows added so far.
        begin: time of the start, in microseconds.
    """

    added: int
    begin: int


COUNTER_POSITION_COLUMNS = tuple((name, Type.BIGINT) for name in CounterPosition._fields)
"""Names and types of the columns of the position table."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter that starts at 1.

    Attributes:
        interval: interval between two rows, in microseconds.
        most: number of the latest rows, which stay; None for all rows.
    """

    interval: int
    most: int | None = None

    def due(self, position: CounterPosition, now: int) -> int:
        """Return the time of the next row."""
        return max(now, position.begin + (position.added + 1) * self.interval)

    def poll(self, position: CounterPosition, now: int) -> tuple[list[tuple[Row, int]], CounterPosition]:
        """Return the changes of rows up to a time, and the new position.

        A row is added for each past interval, even without a poll in the interval.

        Args:
            position: position of the last poll.
            now: the present, in microseconds.
        """
        passed = max(0, (now - position.begin) // self.interval)
        count = min(passed, position.added + _MOST_ROWS)
        numbers = range(position.added + 1, count + 1)
        changes: list[tuple[Row, int]] = [((number,), 1) for number in numbers]
        if self.most is not None:
            changes += [((number - self.most,), -1) for number in numbers if number > self.most]
        return changes, CounterPosition(max(count, position.added), position.begin)


_UNITS = {"day": 86_400_000_000, "days": 86_400_000_000}


def micros_of(text: str, offset: int | None = None) -> int:
    """Return the microseconds of an interval without months.

    Raises:
        SqlError: the text is not an interval (22007); or the interval has months, or is negative (22023).
    """
    words = text_of(Type.INTERVAL, datum_of_text(Type.INTERVAL, text)).split()
    micros = 0
    while words:
        word = words.pop(0)
        if ":" in word and not word.startswith("-"):
            hours, minutes, seconds = word.split(":")
            micros += (int(hours) * 3600 + int(minutes) * 60) * 1_000_000 + round(float(seconds) * 1_000_000)
        elif words and word.isdigit() and words[0] in _UNITS:
            micros += int(word) * _UNITS[words.pop(0)]
        else:
            raise SqlError(
                "22023",
                f"'{text}' is not a duration in days, hours, minutes or seconds",
                offset=offset,
                hint="For example '30 days' or '1 s'.",
            )
    return micros


_SECOND = 1_000_000
_TRUE = {None, "true", "on", "1", "yes"}


@dataclass(frozen=True, slots=True)
class Described:
    """The definition of a new source.

    Attributes:
        columns: columns of its rows.
        origin: origin of its rows, in the form of the catalog.
        on: the collection under the source; None for a source with rows of its own.
        begin: initial row of the position table, for a source with rows of its own.
    """

    columns: tuple[NamedColumn, ...]
    origin: Mapping[str, JSON]
    on: GlobalId | None = None
    begin: Row = ()


def described(statement: CreateSource, objects: Objects, now: int, files: FileAccess) -> Described:
    """Return the definition of a new source.

    Args:
        statement: the CREATE SOURCE statement.
        objects: the current names.
        now: the present, in microseconds.
        files: files that sources may read.

    Raises:
        SqlError: the statement is invalid, or the file cannot be read.
    """
    match statement.origin:
        case CollectionSource(collection, offset):
            return _of_collection(collection, offset, objects)
        case FileSource() as origin:
            return _of_file(statement, origin, objects, files)
        case CounterSource(offset, interval, most):
            micros = micros_of(interval, offset) if interval is not None else _SECOND
            if micros <= 0 or (most is not None and most <= 0):
                raise SqlError(
                    "22023", "interval and cardinality of a counter must be greater than zero", offset=offset
                )
            counter = {"counter": micros, "most": most}
            columns = _columns(COUNTER_COLUMNS)
            return Described(columns, counter, None, CounterPosition(0, now))


def _of_collection(collection: str, offset: int, objects: Objects) -> Described:
    named = objects.lookup(None, collection)
    if named is None or named.kind is not RelationKind.COLLECTION:
        nearest = suggest(collection, [spec.name for spec in objects.collections.values()])
        hint = f'Did you mean "{nearest}"?' if nearest else None
        raise SqlError("42P01", f'collection "{collection}" does not exist', offset=offset, hint=hint)
    return Described(named.columns, {"collection": collection}, named.id)


def _of_file(statement: CreateSource, origin: FileSource, objects: Objects, files: FileAccess) -> Described:
    path = Path(origin.path).expanduser().absolute()
    size = files.size(path)
    options = dict(origin.options)
    unknown = [name for name in options if name.lower() != "header"]
    if unknown:
        hint = "The only option is HEADER, for CSV."
        raise SqlError("42601", f'unrecognized option "{unknown[0]}"', offset=origin.offset, hint=hint)
    is_csv = origin.format == "csv"
    refuse_constraints(statement.columns)
    columns = columns_of_definitions(statement.columns, objects)
    if any(column.modifier for column in columns):
        hint = "Cast to the type in a view over the source."
        raise SqlError("0A000", "type modifiers of sources are not supported", offset=origin.offset, hint=hint)
    has_header = is_csv and (("header" in options and options["header"] in _TRUE) or not columns)
    if not columns:
        columns = _columns(followed_file.header_of(path, files) if is_csv else followed_file.WHOLE)
    file = {"file": str(path), "csv": is_csv, "header": has_header, "size": size}
    return Described(columns, file, None, FilePosition())


def _columns(columns: Sequence[tuple[str, Type]]) -> tuple[NamedColumn, ...]:
    return tuple(NamedColumn(name, kind) for name, kind in columns)


def position_columns(item: Item) -> Sequence[tuple[str, Type]]:
    """Return the columns of the table that records the position of a source in its input."""
    return COUNTER_POSITION_COLUMNS if "counter" in item.origin else followed_file.POSITION_COLUMNS


@dataclass(frozen=True, slots=True)
class SourceDefinition:
    """A source with rows of its own, with the attributes that its feeder needs.

    Attributes:
        id: identifier of the source.
        position: table that records the position of the source in its input.
        columns: names and types.
        origin: origin of the rows.
    """

    id: GlobalId
    position: GlobalId
    columns: tuple[tuple[str, Type], ...]
    origin: Mapping[str, JSON]

    def is_begun(self, position: Row) -> bool:
        """Return whether a position is after all data that existed when the source was created."""
        size: Any = self.origin.get("size", 0)
        return not isinstance(position, FilePosition) or position.offset >= size

    @classmethod
    def of(cls, item: Item) -> SourceDefinition | None:
        """Return the source of an item; None if the item has no rows to feed."""
        if item.position is None:
            return None
        columns = tuple((column.name, column.type) for column in item.columns)
        return cls(item.id, item.position, columns, item.origin)


def polled(source: SourceDefinition, position: Row, now: int, files: FileAccess) -> tuple[list[tuple[Row, int]], Row]:
    """Return the changes of a source's rows since a position, and the new position.

    Raises:
        SqlError: the origin of the rows cannot be read.
    """
    origin: Mapping[str, Any] = source.origin
    numbers = [value for value in position if isinstance(value, int)]
    if "counter" in origin:
        return Counter(origin["counter"], origin["most"]).poll(CounterPosition(*numbers), now)
    file = FileFormat(Path(origin["file"]), origin["csv"], origin["header"], source.columns)
    rows, reached = FollowedFile(file, files).poll(FilePosition(*numbers))
    return [(row, 1) for row in rows], reached
