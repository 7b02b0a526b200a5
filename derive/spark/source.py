"""Collections as a data source of Spark, for `spark.read.format("flow")`.

    import derive.spark.source

    spark.read.format("flow").option("asOf", "2026-01-31T23:59:59Z").load("acmeBank/balances")

Each worker reads the files of its share, so all workers need the data folder and this package. A stream reads published
documents as they become final; its progress is a timestamp in Spark's checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from derive.algebra.types import Row, Type
from derive.contents.rows import (
    Share,
    rows_of_share,
    shares_at,
    shares_between,
    updates_of_share,
)
from derive.errors import FencedError, FrontierError, UsageError
from derive.reader import CollectionReader, DataFolder, clock_of
from derive.relations.arrow import arrow_rows, arrow_schema
from derive.relations.columns import RelationColumn, columns_of
from derive.storage.capability.table import Capability
from derive.storage.table_types import Table

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DIFF = "flow_diff"
"""Name of the optional column with the number of insertions of a row."""


@dataclass(frozen=True, slots=True)
class FlowOptions:
    """Options of a read or stream.

    Attributes:
        name: name of the collection.
        data: the data folder; None for `.flow` beside the catalog.
        source: the catalog.
        as_of: timestamp of a read; None for the latest final timestamp.
        since: first timestamp of a stream; None for all known history.
        diffs: true to add the column of diffs to a stream.
    """

    name: str
    data: str | None
    source: str
    as_of: int | None
    since: int | None
    diffs: bool

    @staticmethod
    def of(options: Mapping[str, str]) -> FlowOptions:
        """Parse options from Spark, with names in any case.

        Raises:
            UsageError: an option is unknown, or has an invalid value.
        """
        given = {name.lower(): value for name, value in options.items()}
        name = given.pop("path", None)
        if not name:
            raise UsageError("the collection is not named", hint='name the collection: .load("acmeBank/balances")')
        times = [given.pop(key, None) for key in ("asof", "since")]
        as_of, since = (None if time is None else clock_of(time) for time in times)
        data, source = given.pop("data", None), given.pop("source", "flow.yaml")
        diffs = given.pop("diffs", "false").lower() == "true"
        if given:
            known = "asOf, since, diffs, data and source"
            raise UsageError(f"there is no option '{min(given)}' of format 'flow'", hint=f"the options are {known}")
        return FlowOptions(name, data, source, as_of, since, diffs)

    def open(self) -> DataFolder:
        """Open the data folder.

        Raises:
            FlowError: the folder or the catalog cannot be read.
        """
        return DataFolder(self.data, self.source)


class FlowPartition(InputPartition):
    """The part of a read for one Spark task.

    Args:
        share: share of a collection.
    """

    def __init__(self, share: Share) -> None:
        super().__init__(share)
        self.share = share


class FlowSource(DataSource):
    """The format `flow`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "flow"

    def schema(self) -> StructType:
        """Return the columns of the collection."""
        asked = FlowOptions.of(self.options)
        with asked.open() as folder:
            schema = arrow_schema(_columns(folder.collection(asked.name), asked))
        return from_arrow_schema(schema)

    def reader(self, schema: StructType) -> FlowReader:
        """Return the reader of the contents at a time."""
        return FlowReader(FlowOptions.of(self.options))

    def streamReader(self, schema: StructType) -> FlowStreamReader:  # noqa: N802
        """Return the reader of the published documents."""
        return FlowStreamReader(FlowOptions.of(self.options))


def register(session: SparkSession | None = None) -> None:
    """Register the format `flow` with a session.

    Args:
        session: the session; None for the active session, if there is one.
    """
    session = session or SparkSession.getActiveSession()
    if session is not None:
        session.dataSource.register(FlowSource)


def _columns(collection: CollectionReader, asked: FlowOptions) -> tuple[RelationColumn, ...]:
    columns = columns_of(collection.source)
    return (*columns, RelationColumn(DIFF, Type.BIGINT, nullable=False, pointer="")) if asked.diffs else columns


class FlowReader(DataSourceReader):
    """Reads a collection at a time.

    Args:
        asked: options of the read.
    """

    def __init__(self, asked: FlowOptions) -> None:
        self._diffs = asked.diffs
        self._asked = asked

    def partitions(self) -> Sequence[InputPartition]:
        """Return the shares of its keys."""
        with self._asked.open() as folder:
            collection = folder.collection(self._asked.name)
            time = collection.latest().time if self._asked.as_of is None else self._asked.as_of
            return [FlowPartition(share) for share in shares_at(collection.store, collection.source, time)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a share."""
        assert isinstance(partition, FlowPartition)
        for rows in rows_of_share(partition.share):
            yield _batch(partition.share, [(row, 1) for row in rows], diffs=self._diffs)


class FlowStreamReader(DataSourceStreamReader):
    """Reads the published updates of a collection: a row for each document, or for each update of a table.

    The reader holds a read capability at its position while it works.

    Args:
        asked: options of the stream.
    """

    def __init__(self, asked: FlowOptions) -> None:
        self._asked = asked
        self._folder: DataFolder | None = None
        self._capability: Capability | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_asked": self._asked, "_folder": None, "_capability": None}

    def _collection(self) -> CollectionReader:
        if self._folder is None:
            self._folder = self._asked.open()
        return self._folder.collection(self._asked.name)

    def _begun(self, offset: Mapping[str, int]) -> CollectionReader:
        """Return the collection that a stream with this offset reads.

        Raises:
            FencedError: the name stands for another relation now.
        """
        collection = self._collection()
        read = offset.get("relation", collection.relation)  # offsets of older versions have no relation
        if collection.relation != read:
            raise FencedError(
                f"the checkpoint belongs to another relation:"
                f" {collection.store.describe_fate(collection.source.name, read)}",
                hint="start another checkpoint, and remove the rows that this stream wrote",
            )
        return collection

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the first offset: the present relation, and a timestamp."""
        collection = self._collection()
        clock = collection.since if self._asked.since is None else self._asked.since
        return {"clock": clock, "relation": collection.relation}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: N802
        """Return the final offset; `start` if there are no new documents."""
        collection = self._begun(start)
        self._acquire(collection, start["clock"])
        known = collection.store.collection(collection.source.name)
        upper = known.sound if known else start["clock"]
        if known is not None and known.failure is not None and upper <= start["clock"]:
            raise known.failure[1]
        is_new = upper > start["clock"] and shares_between(
            collection.store, collection.source, start["clock"], upper, start.get("relation")
        )
        return {"clock": upper, "relation": collection.relation} if is_new else start

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return a share for each file with new documents."""
        collection = self._begun(start)
        self._acquire(collection, start["clock"])
        shares = shares_between(
            collection.store, collection.source, start["clock"], end["clock"], start.get("relation")
        )
        return [FlowPartition(share) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a share."""
        assert isinstance(partition, FlowPartition)
        for updates in updates_of_share(partition.share):
            if not self._asked.diffs and any(diff != 1 for _, diff in updates):
                what = f"rows of '{partition.share.source.name}' are retracted, or repeated"
                raise UsageError(what, hint='read it with .option("diffs", "true")')
            yield _batch(partition.share, updates, diffs=self._asked.diffs)

    def commit(self, end: dict[str, int]) -> None:
        """Move the read capability up to a time, because earlier contents are no longer needed."""
        collection = self._collection()
        self._acquire(collection, end["clock"])
        if self._capability is not None and self._capability.frontier < end["clock"]:
            self._capability = collection.store.capabilities.downgrade(self._capability, end["clock"])

    def stop(self) -> None:
        """Drop the read capability."""
        if self._folder is not None:
            if self._capability is not None:
                self._collection().store.capabilities.release(self._capability)
            self._folder.close()
        self._folder = self._capability = None

    def _acquire(self, collection: CollectionReader, clock: int) -> None:
        """Acquire a read capability at a timestamp, or renew the present one."""
        capabilities = collection.store.capabilities
        if self._capability is not None:
            try:
                capabilities.renew(self._capability)
                return
            except FencedError:  # it expired between two batches
                self._capability = None
        identifier = collection.store.tables.id_of(collection.source.name)
        assert identifier is not None  # the collection was found under this name
        is_table = isinstance(collection.source, Table)
        if clock < collection.since and (is_table or clock > 0):
            raise FrontierError(
                f"'{collection.source.name}' is exact from {collection.since} on, but the stream is at {clock}",
                hint="start another checkpoint",
            )
        self._capability = capabilities.acquire_read(identifier, max(clock, collection.since), purpose="spark stream")


def _batch(share: Share, updates: Sequence[tuple[Row, int]], *, diffs: bool) -> pa.RecordBatch:
    batch = arrow_rows(columns_of(share.source), [row for row, _ in updates])
    if not diffs:
        return batch
    column = pa.array([diff for _, diff in updates], pa.int64())
    return batch.append_column(pa.field(DIFF, pa.int64(), nullable=False), column)


register()
