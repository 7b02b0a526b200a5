"""A session: one stream of transactions into the tables of a materialization."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import gt, not_, or_
from typing import Any

from connectors.kit.requests import DriverCheckpoint, StoredRows, Value
from connectors.materialize_sql.column import Column, Kind, Table
from connectors.materialize_sql.endpoint import Change, Columns, Transfer
from connectors.materialize_sql.values import Encoder, Unfit
from derive.errors import EndpointError

_AT_ONCE = 1000
"""Number of documents that are returned together."""


class SqlSession:
    """The kit's `Session` for tables.

    Args:
        checkpoint: checkpoint to continue from.
        tables: tables of the bindings; the kind of each column is the kind of its stored values.
        transfer: transfer of rows.
        encoder: function that returns the encoder of a column, from packed values to values of `transfer`.
        contents: identity of the rows of each binding's table.
        narrower: checkpoints of the ranges of keys within the session's range.
    """

    def __init__(
        self,
        checkpoint: bytes,
        tables: Sequence[Table],
        transfer: Transfer,
        encoder: Callable[[Column], Encoder],
        contents: Sequence[str] = (),
        narrower: Sequence[bytes] = (),
    ) -> None:
        self._checkpoint = checkpoint
        self._narrower = narrower
        self._contents = contents
        self._tables = tables
        self._transfer = transfer
        self._encoders = [
            [encoder(column) for column in table.columns if column.name != table.document] for table in tables
        ]
        self._loading: list[tuple[int, Iterable[bytes]]] = []
        self._prepared = checkpoint

    @property
    def checkpoint(self) -> bytes:
        """Return the checkpoint of the last commit."""
        return self._checkpoint

    @property
    def contents(self) -> Sequence[str]:
        """Return the identity of the rows of each binding's table."""
        return self._contents

    @property
    def narrower(self) -> Sequence[bytes]:
        """Return the checkpoints of the ranges of keys within the session's range."""
        return self._narrower

    def load(self, binding: int, keys: Sequence[tuple[Value, ...]]) -> None:
        """Start to load documents, beside the previous commit."""
        self._loading.append(
            (binding, self._transfer.load(binding, self._encode(binding, list(zip(*keys, strict=True)))))
        )

    def loaded(self) -> Iterator[tuple[int, Sequence[bytes]]]:
        """Yield the documents of the keys given to `load`."""
        loading, self._loading = self._loading, []
        for binding, documents in loading:
            batch: list[bytes] = []
            for document in documents:
                batch.append(document)
                if len(batch) == _AT_ONCE:
                    yield binding, batch
                    batch = []
            if batch:
                yield binding, batch

    def prepare(self, flow_checkpoint: bytes) -> DriverCheckpoint | None:
        """Set the checkpoint of the next commit; the runtime has nothing else to store."""
        self._prepared = flow_checkpoint
        return None

    def store(self, binding: int, rows: StoredRows) -> None:
        """Stage rows to store.

        Raises:
            EndpointError: a column cannot hold a value.
        """
        if self._tables[binding].delta_updates:
            self._stage(binding, rows, "insert")
            return
        deleted = rows.where(rows.deleted)
        if deleted is not None:
            self._transfer.stage(binding, self._encode(binding, deleted.key_columns), "delete")
        self._stage(binding, rows.where([*map(not_, map(or_, rows.exists, rows.deleted))]), "insert")
        self._stage(binding, rows.where([*map(gt, rows.exists, rows.deleted)]), "update")

    def commit(self) -> None:
        """Commit the staged rows and the checkpoint.

        Raises:
            FencedError: another session has opened some of these keys.
        """
        self._transfer.commit(self._prepared)
        self._checkpoint = self._prepared

    def close(self) -> None:
        """Close the connection."""
        self._transfer.close()

    def _stage(self, binding: int, rows: StoredRows | None, change: Change) -> None:
        if rows is None:
            return
        columns = [*self._encode(binding, [*rows.key_columns, *rows.value_columns])]
        if self._tables[binding].document is not None:
            columns.append(rows.documents)
        self._transfer.stage(binding, columns, change)

    def _encode(self, binding: int, columns: Sequence[Sequence[Value]]) -> Columns:
        encoded: list[Sequence[Any]] = []
        for index, values in enumerate(columns):
            try:
                encoded.append(self._encoders[binding][index](values))
            except Unfit as exc:
                raise self._error(binding, index, exc, columns) from exc
        return encoded

    def _error(self, binding: int, index: int, fault: Unfit, columns: Sequence[Sequence[Value]]) -> EndpointError:
        table = self._tables[binding]
        column = table.columns[index]
        key = [values[fault.row] for values in columns[: len(table.keys)]]
        what = f"table '{'.'.join(table.path)}', column '{column.name}' of type {column.type}, key {key}"
        if column.is_key or column.kind is Kind.JSON:
            hint = "values are stored as they are, or not at all"
        else:
            hint = f"exclude the field '{column.field}', or give it the option {{type: json}} and another table"
        return EndpointError(f"{what}: {fault.reason}", hint=hint)
