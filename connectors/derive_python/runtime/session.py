"""A session of a Python module in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, overload

import numpy as np

from connectors.derive_python.columns import Column, columns_of
from connectors.derive_python.config import config_of, module_of, refusal_of
from connectors.derive_python.environment import find_missing, library_hint
from connectors.derive_python.models import method_of
from connectors.derive_python.runtime.arrays import BatchFrames, batch_of, read_columns
from connectors.derive_python.runtime.project import authored, digest_of, member_position, position_in
from connectors.derive_python.runtime.python_process import PythonProcess
from connectors.module_kit.process import ModuleProcess
from connectors.module_kit.published import AnsweredDocuments
from connectors.module_kit.session import Language, ModuleSession
from derive.document.exact import dump_exact, parse_exact
from derive.document.pointer import JSON
from derive.errors import FlowError
from derive.position import Position
from derive.protocol.derive import Log, PublishedColumns, PublishedDocuments, ReadBatch
from derive.protocol.specs import DerivationSpec, Document
from derive.recently_used import cached_by_identity

if TYPE_CHECKING:
    import apsw

KEYED_TABLE = "flow_python_keys"
"""Table of a shard's database with the values of `self.state`, by shuffle key."""

_HAS_KEYS = f"SELECT 1 FROM sqlite_schema WHERE name = '{KEYED_TABLE}'"

STATE_TABLE = "flow_python"
"""Table of a shard's database with the state that `start_commit` or `flush` returned."""

_ARRAY_ROWS = 4_000
"""Number of rows of a frame with arrays; a frame of numbers and short texts fits into the pipe."""


class _Chosen(Sequence[Document]):
    """Some documents of a batch, looked up on access."""

    def __init__(self, documents: Sequence[Document], rows: np.ndarray) -> None:
        self._documents, self._rows = documents, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Document: ...

    @overload
    def __getitem__(self, index: slice) -> list[Document]: ...

    def __getitem__(self, index: int | slice) -> Document | list[Document]:
        if isinstance(index, slice):
            return [self._documents[row] for row in self._rows[index].tolist()]
        return self._documents[int(self._rows[index])]


@cached_by_identity
def _source_columns(spec: DerivationSpec) -> list[list[Column]]:
    """Return the columns of the source of each transform."""
    return [columns_of(spec.sources[transform.input.source].read_schema) for transform in spec.transforms]


class PythonSession(ModuleSession):
    """Methods of a derivation's class, running in Python.

    Args:
        spec: the derivation.
        database: the shard's database, inside an open transaction.
        log: receives the module's messages.
    """

    language: ClassVar[Language] = Language(
        name="Python",
        runtime="Python",
        state_table=STATE_TABLE,
        commit_method="start_commit",
        timeout_option="--python-timeout",
        log_hint="write to the task's log with 'print' or 'logging'",
    )

    def __init__(self, spec: DerivationSpec, database: apsw.Connection, log: Log) -> None:
        refusal = refusal_of(spec) or find_missing(config_of(spec))
        super().__init__(spec, database, log, module_of(spec), digest_of(spec), refusal)
        self._database = database
        self._frames = BatchFrames()
        self._columns = _source_columns(spec)
        self.answer_question = self._keyed_values

    def _start(self) -> PythonProcess:
        return PythonProcess(self._spec, self._digest)

    def _time_limit(self) -> float:
        return self._spec.limits.python_seconds

    def _method_of(self, transform: str) -> str:
        return method_of(transform)

    def _member_position(self, name: str) -> Position:
        return member_position(self._spec, name)

    def _position_in(self, text: str) -> Position | None:
        return position_in(self._spec, text)

    def _authored(self, text: str) -> str:
        return authored(self._spec, text)

    def _hint_of(self, message: str) -> str | None:
        if "No module named 'pydantic" in message:
            return "install pydantic 2.12 or later into the environment of the interpreter that 'python' names"
        if "No module named" in message:
            return library_hint(config_of(self._spec))
        if message.startswith("MemoryError"):
            return "to raise the limit: --python-memory MB"
        if message.startswith("PermissionError") or "[Errno 1] Operation not permitted" in message:
            return "a module runs in a sandbox; it may ask for 'permissions' to read files and to use the network"
        return None

    def invoke(self, batch: ReadBatch) -> Iterator[tuple[int, Document]]:
        """Run the methods over a batch; see `ModuleSession.invoke`."""
        parts = self._batches(batch)
        if parts is None:
            yield from super().invoke(batch)
            return
        for answer in self._merged(batch, parts, as_columns=False):
            assert isinstance(answer, PublishedDocuments)
            yield from zip(map(int, answer.causes), answer.documents, strict=True)

    def invoke_columns(self, batch: ReadBatch) -> Iterator[PublishedColumns | PublishedDocuments] | None:
        """Run the methods over a batch as columns; see `ModuleSession.invoke_columns`."""
        parts = self._batches(batch)
        return super().invoke_columns(batch) if parts is None else self._merged(batch, parts, as_columns=True)

    def _batches(self, batch: ReadBatch) -> list[tuple[int, np.ndarray, Any]] | None:
        """Return the transforms of a batch of arrays, each with its rows and columns; None without arrays."""
        if batch.fields is None or self.flushes:
            return None
        transforms = np.asarray(batch.transforms, np.int64)
        published, clocks = np.asarray(batch.published), np.asarray(batch.clocks)
        parts = []
        for transform in np.flatnonzero(np.bincount(transforms)).tolist():
            rows = np.flatnonzero(transforms == transform)
            fields = batch.fields[transform]
            made = batch_of(self._columns[transform], fields, published.take(rows), clocks.take(rows))
            if made is None:
                return None
            parts.append((transform, rows, made))
        return parts

    def _merged(
        self, batch: ReadBatch, parts: list[tuple[int, np.ndarray, Any]], *, as_columns: bool
    ) -> Iterator[PublishedColumns | PublishedDocuments]:
        """Yield the published documents of several transforms in the order of their causes."""
        if len(parts) == 1:
            yield from self._answers_of(batch, *parts[0], as_columns=as_columns)
            return
        answers = [answer for part in parts for answer in self._answers_of(batch, *part, as_columns=False)]
        pairs = list[tuple[int, Document]]()
        for answer in answers:
            assert isinstance(answer, PublishedDocuments)
            pairs += zip(map(int, answer.causes), answer.documents, strict=True)
        if pairs:
            pairs.sort(key=itemgetter(0))
            yield PublishedDocuments([cause for cause, _ in pairs], [document for _, document in pairs])

    def _answers_of(
        self, batch: ReadBatch, transform: int, rows: np.ndarray, arrays: Any, *, as_columns: bool
    ) -> Iterator[PublishedColumns | PublishedDocuments]:
        """Yield the published documents of one transform. The process runs a part while the one before it is used.

        A part that does not fit into the pipe is sent after the answer of the part before it. Otherwise the process
        could wait until its answer is read, while this function waits until the process reads the part.
        """
        process = self._open()
        self._unanswered, self._committed = True, False
        begins = range(0, len(rows), _ARRAY_ROWS)
        parts = (arrays.slice(begin, _ARRAY_ROWS) for begin in begins)
        frames = (self._frames.frame_of(part, transform, as_columns=as_columns) for part in parts)
        sent, frame = 0, next(frames, None)
        for answered, begin in enumerate(begins):
            while frame is not None and (sent == answered or (sent == answered + 1 and process.takes(*frame))):
                with suppress(OSError):  # the process has ended, which the answer reports
                    process.send(*frame)
                sent, frame = sent + 1, next(frames, None)
            answer = self._answer(process, batch, transform, rows[begin : begin + _ARRAY_ROWS])
            if len(answer.causes):
                yield answer
        self._unanswered = False

    def _answer(
        self, process: ModuleProcess, batch: ReadBatch, transform: int, rows: np.ndarray
    ) -> PublishedColumns | PublishedDocuments:
        """Return the published documents of some rows of a batch."""
        documents = _Chosen(batch.documents, rows)
        own = ReadBatch([transform] * len(rows), batch.clocks, batch.published, documents)
        self._ends = [len(rows)]
        text = self._text(process, own, 0)
        try:
            columns = read_columns(text, rows)
        except (ValueError, LookupError) as exc:
            raise self._gone(process, text) from exc
        if columns is not None:
            return columns
        try:
            _, answer = self._answered(process, own, 0, text, as_columns=False)
        except FlowError as error:
            if error.rejection is not None:
                error.rejection = replace(error.rejection, index=int(rows[error.rejection.index]))
            raise
        assert isinstance(answer, AnsweredDocuments)
        return PublishedDocuments(rows.take(answer.causes).tolist(), answer.documents)

    def state(self) -> JSON:
        """Return the state that the class would commit now, and the values of all shuffle keys by key."""
        value = super().state()
        if self._database.execute(_HAS_KEYS).get is None:
            return value
        rows = self._database.execute(f"SELECT key, state FROM {KEYED_TABLE} ORDER BY key")
        keys = {key: parse_exact(text.encode()) for key, text in rows}
        return {**value, **keys} if isinstance(value, dict) else keys

    def _commit(self, committed: Any) -> str:
        """Write the values of keys that have changed, and the state."""
        if committed["keys"]:
            self._database.execute(
                f"CREATE TABLE IF NOT EXISTS {KEYED_TABLE} (key TEXT PRIMARY KEY, state TEXT NOT NULL) WITHOUT ROWID"
            )
            empty = [(key,) for key, text in committed["keys"] if text == "{}"]
            full = [(key, text) for key, text in committed["keys"] if text != "{}"]
            self._database.executemany(f"DELETE FROM {KEYED_TABLE} WHERE key = ?", empty)
            self._database.executemany(f"INSERT OR REPLACE INTO {KEYED_TABLE} VALUES (?, ?)", full)
        return self._state.commit(committed["updates"])

    def _keyed_values(self, question: bytes) -> bytes:
        """Return the stored values of keys as a JSON array of texts; null for a key without values."""
        keys = parse_exact(question)
        if self._database.execute(_HAS_KEYS).get is None:
            return dump_exact([None] * len(keys))
        select = f"SELECT state FROM {KEYED_TABLE} WHERE key = ?"
        return dump_exact([self._database.execute(select, (key,)).get for key in keys])


def divide_keys(database: apsw.Connection, is_owned: Callable[[Sequence[JSON]], bool]) -> None:
    """Delete the values of keys for which `is_owned`, a function of the components of a key, returns false."""
    if database.execute(_HAS_KEYS).get is None:
        return
    keys = database.execute(f"SELECT key FROM {KEYED_TABLE}")
    others = [(key,) for (key,) in keys if not is_owned(parse_exact(key.encode()))]
    database.executemany(f"DELETE FROM {KEYED_TABLE} WHERE key = ?", others)
