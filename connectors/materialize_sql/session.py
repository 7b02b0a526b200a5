"""A session: one stream of transactions into the tables of a materialization."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import gt, not_, or_
from typing import Any

from connectors.kit.requests import DriverCheckpoint
from connectors.kit.stored import StoredRows, Value
from connectors.materialize_sql.column import Column, Table
from connectors.materialize_sql.endpoint import Change, Columns, Transfer
from connectors.materialize_sql.kind import Kind
from connectors.materialize_sql.values import Encoder, Unfit
from derive.errors import EndpointError

_AT_ONCE = 1000
"""How many documents are given back together."""


class SqlSession:
    """Fulfils the kit's `Session`.

    Args:
        checkpoint: from where it goes on.
        tables: of its bindings, each column with the kind as which its values are stored.
        transfer: moves rows.
        encoder: of a column, what makes of packed values what `transfer` takes.
        contents: for each binding, the identity of the rows of its table.
    """

    def __init__(
        self,
        checkpoint: bytes,
        tables: Sequence[Table],
        transfer: Transfer,
        encoder: Callable[[Column], Encoder],
        contents: Sequence[str] = (),
    ) -> None:
        self._checkpoint = checkpoint
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
        """What was committed last."""
        return self._checkpoint

    @property
    def contents(self) -> Sequence[str]:
        """For each binding, the identity of the rows of its table."""
        return self._contents

    def load(self, binding: int, keys: Sequence[tuple[Value, ...]]) -> None:
        """Begin to load documents, beside the commit before."""
        self._loading.append(
            (binding, self._transfer.load(binding, self._encode(binding, list(zip(*keys, strict=True)))))
        )

    def loaded(self) -> Iterator[tuple[int, Sequence[bytes]]]:
        """The documents of the keys that were taken."""
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
        """Take the checkpoint of the next commit; there is nothing to keep elsewhere."""
        self._prepared = flow_checkpoint
        return None

    def store(self, binding: int, rows: StoredRows) -> None:
        """Take rows to store.

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
        """Commit what was stored, and the checkpoint.

        Raises:
            FencedError: another session has opened for some of these keys.
        """
        self._transfer.commit(self._prepared)
        self._checkpoint = self._prepared

    def close(self) -> None:
        """End the connection."""
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
