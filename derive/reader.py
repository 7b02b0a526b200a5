"""Collections that are read from Python: the contents at a time, as documents or as Arrow tables.

`derive.open` and Spark's format `flow` read by these classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from typing_extensions import override

from derive.document.clock import TIME_FORMS, format_rfc3339, parse_time
from derive.errors import FrontierError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from derive.protocol.specs import Document
    from derive.relations.columns import Source
    from derive.storage.store import Store

Time: TypeAlias = int | str | datetime
"""A time: microseconds since the Unix epoch, a text that `parse_time` reads, or a `datetime` with a time zone."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DataFolder:
    """A data folder that is open for reading.

    Args:
        data: path of the folder; `.flow` beside the catalog if None.
        source: path of the catalog, which defines the collections. Without a catalog, only tables can be read.

    Attributes:
        path: absolute path of the folder.
        source: path of the catalog.
        catalog: the catalog; None if the file does not exist.

    Raises:
        CatalogError: the catalog has errors.
        UsageError: neither the data folder nor the catalog exists.
        StorageError: the data folder cannot be read.
    """

    def __init__(self, data: str | Path | None, source: str | Path) -> None:
        from derive.catalog import load_without_tests
        from derive.storage.location import require_folder
        from derive.storage.metadata.opening import is_data_folder

        if data is not None:
            require_folder(data)
        self.source = Path(source)
        self.path = (Path(data) if data is not None else self.source.parent / ".flow").absolute()
        self.catalog = load_without_tests(self.source) if self.source.is_file() else None
        self._store: Store | None = None
        if self.catalog is None or is_data_folder(self.path):
            self._store = self._open()

    def _open(self) -> Store:
        from derive.storage.metadata.opening import is_data_folder
        from derive.storage.store import Store

        if not is_data_folder(self.path):
            raise UsageError(
                f"{self.path} is not a data folder: it has no metadata.db",
                hint="name the folder of flowctl with data=…, or store documents first: flowctl ingest",
            )
        return Store(self.path, reading=True)

    @property
    def store(self) -> Store:
        """Return the store of the folder, open for reading.

        Raises:
            UsageError: the data folder does not exist yet.
        """
        if self._store is None:
            self._store = self._open()
        return self._store

    @property
    def names(self) -> list[str]:
        """Return the names of all collections and tables, in alphabetical order."""
        specs = self.catalog.collections if self.catalog else ()
        return sorted({*specs, *(table.name for table in self.store.tables.all())})

    def collection(self, name: str) -> CollectionReader:
        """Return the reader of a collection of the catalog, or of a table.

        Raises:
            UsageError: the name is unknown, or nothing is stored in the collection yet.
        """
        source = self.find(name)
        if self.store.collection(name) is None:
            raise UsageError(
                f"nothing is stored in collection '{name}' yet",
                hint="ingest documents, or derive them: flowctl run --until-idle",
            )
        return CollectionReader(self.store, source)

    def find(self, name: str) -> Source:
        """Return a collection of the catalog, or a table.

        Raises:
            UsageError: the name is unknown.
        """
        from derive.errors import suggest

        specs = self.catalog.collections if self.catalog else {}
        source = self.store.tables.find(name) or specs.get(name)
        if source is None:
            where = f"'{self.source}'" if self.catalog else "the data folder, opened without a catalog,"
            guess = suggest(name, self.names)
            raise UsageError(f"{where} has no collection '{name}'", hint=f"did you mean '{guess}'?" if guess else None)
        return source

    def close(self) -> None:
        """Release the data folder."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class CollectionReader:
    """A collection that is open for reading.

    Attributes:
        store: store of the collection.
        source: the collection or table.
    """

    store: Store
    source: Source

    @override
    def __repr__(self) -> str:
        return f"CollectionReader({self.source.name!r})"

    @property
    def since(self) -> int:
        """Return the earliest readable time, in microseconds since the Unix epoch."""
        return self._frontiers()[0]

    @property
    def upper(self) -> int:
        """Return the time below which all contents are final, in microseconds since the Unix epoch."""
        return self._frontiers()[1]

    @property
    def relation(self) -> int:
        """Return the number of the relation with this name; it changes when the relation is recreated or reset."""
        return self.store.relation(self.source.name) or 0

    def _frontiers(self) -> tuple[int, int]:
        known = self.store.collection(self.source.name)
        if known is None:
            raise UsageError(
                f"collection '{self.source.name}' was dropped or reset, and nothing was stored in it since"
            )
        return known.since, known.upper

    def __iter__(self) -> Iterator[Document]:
        """Yield the documents at the latest final time, as `latest()` does."""
        return iter(self.latest())

    def as_of(self, time: Time) -> Contents:
        """Return the contents at a time.

        Raises:
            UsageError: `time` cannot be parsed.
        """
        return Contents(self.store, self.source, clock_of(time))

    def latest(self) -> Contents:
        """Return the contents at the latest final time."""
        since, upper = self._frontiers()
        if upper <= since:
            raise FrontierError(
                f"'{self.source.name}' has no final time yet",
                hint="ingest documents, or derive them: flowctl run --until-idle",
            )
        return Contents(self.store, self.source, upper - 1)

    def to_arrow(self) -> pa.Table:
        """Return the rows at the latest final time as one table, as `latest().to_arrow()` does."""
        return self.latest().to_arrow()

    def to_pandas(self) -> Any:
        """Return the rows at the latest final time as a pandas DataFrame, as `latest().to_pandas()` does."""
        return self.latest().to_pandas()

    def to_polars(self) -> Any:
        """Return the rows at the latest final time as a polars DataFrame, as `latest().to_polars()` does."""
        return self.latest().to_polars()


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a collection at a time.

    Attributes:
        store: store of the collection.
        source: the collection or table.
        time: microseconds since the Unix epoch.
    """

    store: Store
    source: Source
    time: int

    @override
    def __repr__(self) -> str:
        return f"Contents({self.source.name!r}, {format_rfc3339(self.time)!r})"

    def __iter__(self) -> Iterator[Document]:
        """Yield the documents in the order of keys, reduced per key; a row of a table is a document of its columns.

        Raises:
            FrontierError: the time is compacted, or not final yet.
        """
        from derive.contents.reads import ReadOptions
        from derive.contents.reduced import reduced_documents
        from derive.storage.table_types import Table

        if isinstance(self.source, Table):
            yield from (row for batch in self.to_batches() for row in batch.to_pylist())
            return
        stored = self.store.read_as(self.store.tables.as_stored(self.source), self.time)
        with closing(reduced_documents(self.store, stored, ReadOptions(as_of=self.time))) as parts:
            for rows in parts:
                yield from rows.documents()

    @property
    def schema(self) -> pa.Schema:
        """Return the Arrow schema of the columns."""
        from derive.relations.arrow import arrow_schema
        from derive.relations.columns import columns_of

        return arrow_schema(columns_of(self.source))

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of some thousand rows, in no particular order.

        Raises:
            FrontierError: the time is compacted, or not final yet.
        """
        from derive.contents.rows import contents_at
        from derive.relations.arrow import arrow_rows
        from derive.relations.columns import columns_of

        columns = columns_of(self.source)
        with closing(contents_at(self.store, self.source, self.time)) as batches:
            for rows in batches:
                yield arrow_rows(columns, rows)

    def to_arrow(self) -> pa.Table:
        """Return the rows as one table.

        Raises:
            FrontierError: the time is compacted, or not final yet.
        """
        import pyarrow as pa

        return pa.Table.from_batches(self.to_batches(), schema=self.schema)

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame.

        Raises:
            FrontierError: the time is compacted, or not final yet.
        """
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return the rows as a polars DataFrame.

        Raises:
            FrontierError: the time is compacted, or not final yet.
            UsageError: polars is not installed.
        """
        from derive.relations.arrow import polars_frame

        return polars_frame(self.to_arrow())


def clock_of(time: Time) -> int:
    """Convert a time to microseconds since the Unix epoch.

    Raises:
        UsageError: `time` is a `datetime` without a time zone, or a text that is not a time.
    """
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise UsageError(f"{time} has no time zone", hint="attach a time zone, such as datetime.UTC")
        return (time - _EPOCH) // timedelta(microseconds=1)
    if isinstance(time, str):
        try:
            return parse_time(time)
        except ValueError as exc:
            raise UsageError(f"{time!r} is not {TIME_FORMS}") from exc
    return time
