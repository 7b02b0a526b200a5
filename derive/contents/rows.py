"""The rows of a collection or of a table at a time, also in shares that processes read in parallel.

A table without deletions needs no sorting and counting, because its rows are its updates. If files have typed columns
for all needed columns, no document is parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from derive.algebra.bounds import Bounds
from derive.algebra.types import Datum, Row, Type
from derive.contents.reads import ReadOptions, read_between, reading
from derive.contents.reduced import ChosenRows, batches_of, reduced_locally
from derive.document.clock import format_rfc3339
from derive.document.key import pack
from derive.document.pointer import JSON
from derive.errors import FencedError, FrontierError, SegmentMissingError
from derive.protocol.specs import CollectionSpec
from derive.relations.columns import Source, columns_of, compile_rows
from derive.relations.table_rows import TableRows, rows_of
from derive.schema.projection import UUID_POINTER
from derive.storage.location import Location
from derive.storage.roles import Readable
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import ContentRows, ReadRows
from derive.storage.table_types import AppendedRow, Table
from derive.storage.tables import pieces_of
from derive.time import BEGINNING
from derive.time.extent import size_of
from derive.time.positions import Segment, SourceRead

if TYPE_CHECKING:
    from derive.storage.metadata.tables import TableRead
    from derive.storage.segments.columns import TypedColumn
    from derive.storage.segments.reader import Condition

_BATCH = 10_000
_NO_BOUNDS: Bounds = {}


def table_at(store: Readable, table: Table, as_of: int, bounds: Bounds = _NO_BOUNDS) -> Generator[list[Row]]:
    """Yield the rows of a table at a time, in batches; each row is repeated by its count.

    Args:
        store: the data folder.
        table: the table.
        as_of: the time.
        bounds: bounds of columns in needed rows; other rows may be left out.

    Raises:
        FrontierError: the contents at that time are compacted, or not known yet.
        ViewError: the table is a materialized view with an error in place of rows.
    """
    with _kept(store, table, as_of):
        yield from _batches(store, table, as_of, bounds)


def unordered_at(
    store: Readable,
    table: Table,
    as_of: int,
    requested: Collection[int] | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Generator[list[Row]]:
    """Yield the rows of `table_at`, in any order.

    Args:
        store: the data folder.
        table: the table.
        as_of: the time.
        requested: indexes of the needed columns, others may be NULL; None for all.
        progress: called with numbers of rows, as by `contents_at`.

    Raises:
        FrontierError: as for `table_at`.
        ViewError: as for `table_at`.
    """
    with _kept(store, table, as_of):
        known = store.tables.read(table.id, BEGINNING, as_of + 1)
        with _dropped(table):
            if not is_added_to(store.location, known.segments, known.appended):
                yield from _batches(store, table, as_of, progress=progress)
                return
            additions = TableAdditions(store.location, table, requested)
            for batch in additions.read(SourceRead(0, 0, BEGINNING, as_of + 1, known.segments), known.appended):
                progress(2 * len(batch))
                yield batch


def last_rows(store: Readable, table: Table) -> Generator[list[Row]]:
    """Yield the last stored rows in batches, also of a materialized view with an error in place of rows.

    Compaction may have reduced the rows to their state from `upper` on, so that no time is left at which they are
    known.

    Raises:
        FrontierError: there are later rows now.
    """
    with store.capabilities.keep(table.name, max(table.since, table.upper - 1), table.id) as capability:
        yield from _batches(store, table, capability.frontier)


@contextmanager
def _kept(store: Readable, table: Table, as_of: int) -> Iterator[None]:
    """Keep the history of a table at a time while the block runs, and check that the table is known at that time."""
    with store.capabilities.keep(table.name, as_of, table.id) as capability:
        upper = capability.upper()
        if as_of >= upper:
            raise FrontierError(
                f"'{table.name}' is known only before {format_rfc3339(upper)}, and not yet at {format_rfc3339(as_of)}"
            )
        store.tables.check_at(present_name(store, table), as_of)
        yield


def _batches(
    store: Readable,
    table: Table,
    as_of: int,
    bounds: Bounds = _NO_BOUNDS,
    progress: Callable[[int], None] = lambda _: None,
) -> Iterator[list[Row]]:
    # A reader that resumes reads no files at first, so it need not wait for this wake-up.
    from derive.contents.reduced import ChosenRows, batches_of, reduced_locally
    from derive.storage.segments.rows import StoredRows

    rows = rows_of(table)
    with _dropped(table):
        conditions, known = _read_with_conditions(store, table, as_of, bounds)
    read = SourceRead(0, 0, BEGINNING, as_of + 1, known.segments)
    updates = conditions.matching(known.appended)
    columns = zip(*pieces_of(updates), strict=True) if updates else ((),) * len(StoredRows.SCHEMA)
    appended = StoredRows.from_columns(*columns)
    with _dropped(table), TemporaryDirectory(prefix="flowctl-") as scratch:
        parts = reduced_locally(
            store.location,
            table.spec,
            read,
            Path(scratch),
            chosen=ChosenRows(conditions=conditions.filters, appended=appended),
            progress=progress,
        )
        for batch in batches_of(parts):
            yield rows.rows(batch.texts.to_pylist())


_MOST_PARTS = 10
"""Maximum number of values for which texts are searched before they are parsed."""


class _TableConditions:
    """Conditions on typed columns of a table.

    The values of typed columns depend only on the text of a row. A deletion has the same text as its insertion, so a
    condition is true for all updates of a row or for none, even if the row is older than the type of a column. The sum
    of the remaining updates has all needed rows.

    Args:
        table: the table.
        bounds: bounds of its columns.
        typed: typed columns that all segments of the read have; bounds of other columns are ignored.

    Attributes:
        filters: the conditions on rows of segments.
    """

    def __init__(self, table: Table, bounds: Bounds, typed: Collection[TypedColumn]) -> None:
        by_pointer = {column.pointer: column for column in typed}
        pointers = [column.pointer for column in table.columns]
        self._rows = rows_of(table)
        self._bounds = {index: bound for index, bound in bounds.items() if pointers[index] in by_pointer}
        self._columns = [by_pointer[pointers[index]] for index in self._bounds]
        self.filters = list(map(self._filter, self._columns, self._bounds))

    def _filter(self, column: TypedColumn, index: int) -> Condition:
        import pyarrow as pa

        from derive.storage.segments.reader import Condition

        bound = self._bounds[index]
        data = None if bound.data is None else [self._rows.value(index, one) for one in bound.data if one is not None]
        ends: list[Any] = [bound.least, bound.most]
        return Condition(column.name, None if data is None else pa.array(data, column.type), *ends)

    def within_texts(self) -> list[list[str]]:
        """Return lists of substrings: the text of every needed row contains a substring of each list.

        Other texts may, too.
        """
        return [
            [self._rows.part(index, datum) for datum in bound.data if datum is not None]
            for index, bound in self._bounds.items()
            if bound.data is not None and len(bound.data) <= _MOST_PARTS
        ]

    def matching(self, appended: Sequence[AppendedRow]) -> Sequence[AppendedRow]:
        """Return the updates of needed rows, as the filters select them in segments."""
        if not self.filters or not appended:
            return appended
        import pyarrow as pa

        from derive.storage.segments.reader import made_columns
        from derive.storage.segments.texts import parse_texts

        documents = parse_texts(pa.array([text for *_, text in appended], pa.string()))
        arrays, _ = made_columns(self._columns, [column.kind for column in self._columns], documents)
        masks = [one.mask(array).to_pylist() for one, array in zip(self.filters, arrays, strict=True)]
        return [update for update, *passes in zip(appended, *masks, strict=True) if all(passes)]


def _read_with_conditions(
    store: Readable, table: Table, as_of: int, bounds: Bounds
) -> tuple[_TableConditions, TableRead]:
    """Return the conditions of a read of a table until a time, and the updates, of which some may be left out.

    A segment lacks a typed column if it was written before ALTER TABLE added the column or changed its type. Then the
    whole read has no condition on the column: with conditions on some segments, the deletion of a row could be left
    out, but not its insertion.
    """
    from derive.storage.segments.columns import columns_in, typed_columns

    pointers = {table.columns[index].pointer for index in bounds}
    typed = {column for column in typed_columns(table.spec) if column.pointer in pointers} if bounds else set()
    while True:
        conditions = _TableConditions(table, bounds, typed)
        known = store.tables.read(table.id, BEGINNING, as_of + 1, conditions.within_texts())
        held = typed.intersection(*(columns_in(store.location, segment) for segment in known.segments if typed))
        if held == typed:
            return conditions, known
        typed = held


@contextmanager
def _dropped(table: Table) -> Iterator[None]:
    """Translate the error of a missing file to the error of a dropped table."""
    try:
        yield
    except SegmentMissingError as exc:
        raise FencedError(f"'{table.name}' was dropped during the read", hint="run the command again") from exc


def present_name(store: Readable, table: Table) -> str:
    """Return the table's name at present."""
    return store.tables.name_of(table.id) or table.name


def is_added_to(location: Location, segments: Sequence[Segment], appended: Sequence[AppendedRow]) -> bool:
    """Return whether a table has no deletions, according to the statistics of its files.

    Args:
        location: location of the segments.
        segments: segments of the table.
        appended: updates that are in no segment yet.
    """
    from derive.storage.segments.segment_file import only_adds

    return all(diff > 0 for _, _, diff, _, _ in appended) and all(only_adds(location, segment) for segment in segments)


class TableAdditions:
    """A reader of a table for which `is_added_to` is true.

    Args:
        location: location of the segments.
        table: the table.
        requested: indexes of the needed columns, others may be NULL; None for all.
    """

    def __init__(self, location: Location, table: Table, requested: Collection[int] | None) -> None:
        from derive.storage.segments.columns import typed_columns

        self._location = location
        self._rows: TableRows = rows_of(table)
        self._width = len(table.columns)
        self._requested = range(self._width) if requested is None else sorted(set(requested))
        typed = {column.pointer: column for column in typed_columns(table.spec)}
        columns = [typed.get(table.columns[index].pointer) for index in self._requested]
        self._columns: list[TypedColumn] | None = None if None in columns else [one for one in columns if one]

    def read(self, read: SourceRead, appended: Sequence[AppendedRow]) -> Iterator[list[Row]]:
        """Yield all rows in batches, each repeated by its count.

        Args:
            read: read of the segments.
            appended: updates that are in no segment yet.
        """
        from derive.storage.segments.reader import TOLD_DOCUMENTS, Selection, read_segment

        selection = TOLD_DOCUMENTS
        if self._columns is not None:
            kinds = tuple(column.kind for column in self._columns)
            selection = Selection(kinds, {read.index: self._columns}, has_documents=False, marks_deletions=True)
        for segment in read.segments:
            for rows in read_segment(self._location, read, segment, selection):
                for begin in range(0, len(rows), _BATCH):
                    yield self._of(rows.slice(begin, _BATCH))
        texts = [text for _, _, diff, _, text in appended for _ in range(diff)]
        for begin in range(0, len(texts), _BATCH):
            yield self._rows.rows(texts[begin : begin + _BATCH])

    def _of(self, rows: ReadRows) -> list[Row]:
        from derive.storage.segments.columns import decode, unpack_codes

        if rows.fields is None or self._columns is None:
            return self._rows.rows(rows.texts.to_pylist())
        data: list[Sequence[Datum]] = [[None] * len(rows)] * self._width
        codes = unpack_codes(rows.fields.field(len(self._columns)))
        for place, (index, column) in enumerate(zip(self._requested, self._columns, strict=True)):
            own_codes = None if codes is None else codes[:, place]
            look = partial(_looked_up, rows, column)
            data[index] = self._rows.data(index, decode(rows.fields.field(place), own_codes, None, look))
        return list(zip(*data, strict=True)) if data else [()] * len(rows)


def _looked_up(rows: ReadRows, column: TypedColumn, some: list[int]) -> list[JSON]:
    """Return the values in the documents of some rows, for values that a typed column cannot hold."""
    from derive.storage.segments.columns import compile_values

    return compile_values(column.pointer)(rows.take(some).documents())


_MOST_KEYS = 1_000
"""Maximum number of keys that are looked up in files; for more, files are scanned."""


def contents_at(
    store: Readable,
    source: Source,
    as_of: int,
    requested: Collection[int] | None = None,
    bounds: Bounds | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Generator[list[Row]]:
    """Yield the rows that a collection holds at a time.

    Args:
        store: the data folder.
        source: the collection.
        as_of: timestamp, at or above its `since` and below its `upper`.
        requested: indexes of the needed columns, others may be NULL; None for all.
        bounds: bounds of columns in needed rows; other rows may be left out.
        progress: called with numbers of documents, together twice the number that is read.

    Yields:
        Batches of rows, in no order.

    Raises:
        UsageError: nothing is stored under the collection's name.
        FrontierError: the contents at that time are compacted, or not known yet.
        ReductionError: documents of a key cannot be reduced.
        SqlError: a document has a value that its column cannot hold.
    """
    if isinstance(source, Table):
        few = table_at(store, source, as_of, bounds) if bounds else None
        yield from unordered_at(store, source, as_of, requested, progress) if few is None else few
        return
    from derive.contents.reads import ReadOptions
    from derive.contents.reduced import batches_of, reduced_documents

    columns = columns_of(source)
    rows = compile_rows(columns, requested)
    is_parsed = requested is None or any(columns[index].pointer != UUID_POINTER for index in requested)
    is_keyed = store.read_as(source, as_of).key == source.key  # packed keys are those of the version
    options = ReadOptions(as_of=as_of, keys=_keys(source, bounds or {}) if is_keyed else None)
    with closing(reduced_documents(store, source, options, progress)) as parts:
        for batch in batches_of(parts):
            yield rows(batch.documents() if is_parsed else [{}] * len(batch), batch.clocks())


class ReadProgress:
    """The progress of a statement that reads collections and tables."""

    def __init__(self) -> None:
        self._done = self._total = 0

    @property
    def share(self) -> float | None:
        """Return the share of the documents that are read; None if the statement reads none."""
        return min(1.0, self._done / self._total) if self._total else None

    def begin(self, store: Readable, sources: Iterable[Source]) -> Callable[[int], None]:
        """Add the documents of sources that are about to be read; return the function that counts them."""
        for source in sources:
            if isinstance(source, Table):
                self._total += 2 * store.tables.updates_of([source.id])
            elif (known := store.collection(source.name)) is not None:
                self._total += 2 * known.documents
        return self._add

    def _add(self, documents: int) -> None:
        self._done += documents


def _keys(spec: CollectionSpec, bounds: Bounds) -> tuple[bytes, ...] | None:
    """Return packed keys of the needed documents; None for all."""
    columns = columns_of(spec)
    choices: list[list[JSON]] = []
    for pointer in spec.key:
        place = next((at for at, column in enumerate(columns) if at in bounds and column.pointer == pointer), None)
        data = None if place is None else bounds[place].data
        if place is None or data is None:
            return None
        is_boolean = columns[place].type is Type.BOOLEAN
        choices.append([bool(datum) if is_boolean else datum for datum in data if datum is not None])
    return tuple(map(pack, product(*choices))) if prod(map(len, choices)) <= _MOST_KEYS else None


_SHARE_DOCUMENTS = 250_000
"""Approximate number of documents in a share."""

MOST_SHARES = 64


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a read of a collection.

    Attributes:
        location: location of the segments, which every reading process must reach.
        source: the collection.
        read: segments and timestamps of the read.
        spec: the collection as the documents of the read version are defined.
        number: number of the share of keys, from 0.
        count: number of shares.
    """

    location: Location
    source: Source
    read: SourceRead
    spec: CollectionSpec
    number: int = 0
    count: int = 1


def spec_of(source: Source) -> CollectionSpec:
    """Return the collection of a catalog, or the table as a collection."""
    return source.spec if isinstance(source, Table) else source


def shares_at(store: Readable, source: Source, as_of: int) -> list[Share]:
    """Return the contents of a collection at a time, in shares of its keys.

    Raises:
        FrontierError: the contents at that time are compacted, or not known yet.
    """
    table = source.id if isinstance(source, Table) else None
    with reading(store, spec_of(source), ReadOptions(as_of=as_of), table) as versioned:
        count = min(MOST_SHARES, max(1, size_of([versioned.read]).documents // _SHARE_DOCUMENTS))
        return [Share(store.location, source, versioned.read, versioned.spec, number, count) for number in range(count)]


def rows_of_share(share: Share) -> Iterator[list[Row]]:
    """Yield the rows of a share of a collection's contents.

    Raises:
        SegmentError: a file cannot be read.
        ReductionError: documents of a key cannot be reduced.
        SqlError: a document has a value that its column cannot hold.
    """
    make = _maker(share.source)
    with TemporaryDirectory(prefix="flow-") as scratch:
        chosen = ChosenRows(share=(share.number, share.count))
        parts = reduced_locally(share.location, share.spec, share.read, Path(scratch), chosen=chosen)
        for batch in batches_of(parts):
            yield make(batch, batch.clocks())


def shares_between(store: Readable, source: Source, begin: int, end: int, relation: int | None = None) -> list[Share]:
    """Return the documents of a collection with timestamps in `[begin, end)`, as one share for each file.

    The caller must hold the capability to read the collection from `begin` on.
    """
    spec = spec_of(source)
    spec = spec if isinstance(source, Table) else store.read_as(spec)
    read = read_between(store, spec, ReadOptions().selector, begin, end, relation)
    return [Share(store.location, source, replace(read, segments=(segment,)), spec) for segment in read.segments]


def updates_of_share(share: Share) -> Iterator[list[tuple[Row, int]]]:
    """Yield the rows of a share of published documents, with the changes of their counts.

    Raises:
        SegmentError: a file cannot be read.
        SqlError: a document has a value that its column cannot hold.
    """
    make = _maker(share.source)
    for part in read_sorted(share.location, [share.read]):
        yield list(zip(make(part, part.adjusted.tolist()), part.diffs.tolist(), strict=True))


def _maker(source: Source) -> Callable[[ContentRows | ReadRows, Sequence[int]], list[Row]]:
    """Return a function that converts stored documents and timestamps to rows.

    Tables have types that documents lack.
    """
    if isinstance(source, Table):
        table = TableRows(source)
        return lambda stored, _: table.rows(stored.texts.to_pylist())
    make = compile_rows(columns_of(source))
    return lambda stored, clocks: make(stored.documents(), clocks)
