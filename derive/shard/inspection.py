"""Queries over the states of a task's shards at the last commit, while the task runs.

The states are copied. During the copy, no shard is opened for another transaction, and running attempts continue: the
prepared state of the last commit stays until its shard is opened again. Queries run on the copies, so they delay no
transaction.

The databases of all shards are attached to one connection. A table of a query is the union of the tables of this name
in all shards, with the number of the shard as the first column.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw

from derive.document.exact import dump_exact
from derive.document.key import packed_key
from derive.document.pointer import JSON
from derive.errors import BusyError, StateMissingError, UsageError
from derive.lambda_sql.guard import HEAP
from derive.position import Position
from derive.protocol.derive import ShowsState
from derive.protocol.entry_points import find_runtime
from derive.protocol.specs import DerivationSpec
from derive.shard.owners import owners_of_keys
from derive.shard.state import copy_prepared, keeps_state, settle_copy, shard_folder, still
from derive.shard.state_objects import apply_links
from derive.storage.blobs import Blobs
from derive.storage.location import blobs_of
from derive.storage.metadata.chain import Chain
from derive.storage.metadata.descriptions import TaskState
from derive.storage.roles import View

SHARD = "flow_shard"
"""Column with the number of a row's shard."""

HIDDEN = ("flow_", "sqlite_")
"""Beginnings of the names of tables that are not shown."""

MOST_SHARDS = 120
"""Maximum number of shards of one query; SQLite attaches at most 125 databases."""

_ATTEMPTS = 5
_STEPS = 10_000
"""Steps of SQLite between two checks of the time."""

_READING = frozenset({apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE})
_INNER_PRAGMAS = frozenset({"data_version"})
"""Pragmas that full-text search uses internally."""


def shard_of_key(spec: DerivationSpec, value: JSON, shards: int) -> int:
    """Return the number of the shard that owns a shuffle key.

    Args:
        spec: the derivation.
        value: the key, an array with its components; a key of one component may also be the bare value.
        shards: number of shards.

    Raises:
        UsageError: the derivation has no shuffle key, or the value does not fit it.
    """
    keyed = [transform.shuffle for transform in spec.transforms if transform.shuffle.kind != "any"]
    if not keyed:
        raise UsageError(
            f"'{spec.name}' has no shuffle key: each of its documents may come to any shard", hint="leave out --key"
        )
    types = keyed[0].key_types
    values = value if isinstance(value, list) else [value]
    if len(values) != len(types) or not all(map(_fits, values, types)):
        shown = f"a shuffle key of '{spec.name}' is [{', '.join(types)}]"
        raise UsageError(f"{shown}, and not {dump_exact(value).decode()}")
    return int(owners_of_keys([packed_key(values)], shards)[0])


def _fits(value: JSON, kind: str) -> bool:
    """Return whether a value may be a component of a shuffle key of a type; every component may be null."""
    if value is None:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, int | float):
        return kind == "integer" and (isinstance(value, int) or value.is_integer())
    return kind == "string" and isinstance(value, str)


@contextmanager
def copied_states(store: View, root: Path, task: str, only: int | None = None) -> Iterator[dict[int, Path]]:
    """Yield copies of the databases of a task's shards at its last commit, by the shard's number.

    The copies are in a temporary folder, which is removed at the end. Shards without state are left out.

    Args:
        store: the data folder.
        root: path of the data folder.
        task: name of the derivation.
        only: number of the only shard to copy; None for all.

    Raises:
        UsageError: the task has never run.
        BusyError: the task was reset or split during every attempt.
        HeldError: another process holds a shard's folder.
        StorageError: a database cannot be copied.
    """
    with TemporaryDirectory(prefix="flowctl-state-") as scratch:
        for number in range(_ATTEMPTS):
            folder = Path(scratch) / str(number)
            copies = _copy(store, root, task, only, folder)
            if copies is not None:
                yield copies
                return
    raise BusyError(f"'{task}' was reset or split during every attempt", hint="run the command again")


def _copy(store: View, root: Path, task: str, only: int | None, scratch: Path) -> dict[int, Path] | None:
    """Copy the states; return None if the task was reset or split meanwhile."""
    before = state_of(store, task)
    numbers = range(before.shards) if only is None else [only]
    folders = {
        number: shard_folder(root, before.folder, number, before.shards)
        for number in numbers
        if number not in before.chains
    }
    with ExitStack() as standstill:
        locks = {}
        for number, folder in folders.items():
            if keeps_state(folder):
                locks[number] = standstill.enter_context(ExitStack())
                locks[number].enter_context(still(folder))
        now = state_of(store, task)
        if now.shards != before.shards or not {*now.tokens}.intersection(numbers) <= locks.keys() | now.chains.keys():
            return None
        prepared: dict[int, tuple[Path, str]] = {}
        for number in locks.keys() & now.chains.keys():
            locks.pop(number).close()
        for number, lock in locks.items():
            token = now.tokens.get(number)
            copy = scratch / str(number)
            copy.mkdir(parents=True)
            if token is not None and copy_prepared(folders[number], copy, token):
                prepared[number] = copy, token
            lock.close()
    copies = {number: settle_copy(copy, token) for number, (copy, token) in prepared.items()}
    try:
        chains = {number: now.chains[number] for number in now.chains.keys() & {*numbers}}
        copies |= _fetched(blobs_of(store.location), chains, scratch)
    except StateMissingError:  # a later transaction has removed it, unless it is lost
        if state_of(store, task).chains == now.chains:
            raise
        return None
    return dict(sorted(copies.items()))


def _fetched(blobs: Blobs, chains: Mapping[int, Chain], scratch: Path) -> dict[int, Path]:
    """Fetch the states of shards that travel."""
    copies = {number: scratch / f"{number}.db" for number in chains}
    scratch.mkdir(parents=True, exist_ok=True)
    for number, chain in chains.items():
        apply_links(blobs, chain, copies[number])
    return copies


def state_of(store: View, task: str) -> TaskState:
    """Return the state of a task.

    Raises:
        UsageError: the task has never run.
    """
    state = store.task(task)
    if state is None:
        raise UsageError(f"'{task}' has no state: it has never run", hint="run it with: flowctl run --until-idle")
    return state


@dataclass(frozen=True, slots=True)
class StateTable:
    """A table of the shards' databases.

    Attributes:
        name: name of the table.
        columns: names of its columns, after the column with the shard's number.
        shards: numbers of the shards that have it.
    """

    name: str
    columns: tuple[str, ...]
    shards: tuple[int, ...]


class StateQuery:
    """Runs SELECT statements over copies of the shards' databases.

    Args:
        spec: the derivation.
        copies: path of each database, by the shard's number.
        seconds: time limit of a statement.
        megabytes: limit of the growth of SQLite's heap by a statement.

    Attributes:
        tables: the tables, by name.
        keyed: name of the connector's table with the column `key`; None if missing.

    Raises:
        UsageError: there are too many shards.
    """

    def __init__(self, spec: DerivationSpec, copies: Mapping[int, Path], seconds: float, megabytes: int) -> None:
        if len(copies) > MOST_SHARDS:
            raise UsageError(
                f"'{spec.name}' has {len(copies)} shards with state, and a query takes {MOST_SHARDS}",
                hint="name a shuffle key with --key, which selects one shard",
            )
        self._seconds, self._megabytes = seconds, megabytes
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
        self._db = apsw.Connection(":memory:", flags)
        for number, path in copies.items():
            # The copy belongs to this process alone, so SQLite needs neither locks nor files beside it.
            self._db.execute(f"ATTACH ? AS {_schema(number)}", (f"{path.as_uri()}?mode=ro&immutable=1",))
        runtime = find_runtime(spec.connector)
        views = runtime.state_views() if isinstance(runtime, ShowsState) else {}
        self.tables: dict[str, StateTable] = {}
        for table in _tables(self._db, copies):
            self._define(table.name, table.shards, [_select(self._db, table, number) for number in table.shards])
        self.keyed: str | None = None
        for name, select in views.items():
            selects = dict(_selects_of(self._db, select, copies))
            if selects:
                self._define(name, tuple(selects), list(selects.values()))
                self.keyed = name if "key" in self.tables[name].columns else self.keyed
        self._db.authorizer = _authorize

    def _define(self, name: str, shards: tuple[int, ...], selects: Sequence[str]) -> None:
        """Create a table as the union of a SELECT for each shard."""
        self._db.execute(f"CREATE TEMP VIEW {_quoted(name)} AS {' UNION ALL '.join(selects)}")
        columns = _columns(self._db, "temp", name)
        self.tables[name] = StateTable(name, tuple(column for column in columns if column != SHARD), shards)

    def close(self) -> None:
        """Close the databases."""
        self._db.authorizer = None
        self._db.close(True)

    def rows(self, sql: str, values: Sequence[str | int | None] = ()) -> Iterator[dict[str, JSON]]:
        """Yield the rows of a statement, by the names of columns.

        Args:
            sql: one SELECT.
            values: values of its parameters.

        Raises:
            UsageError: the statement is invalid, does more than read, returns a text that is not UTF-8, or exceeds a
                limit.
        """
        timer = _Timer(self._seconds)
        self._db.set_progress_handler(timer.is_over, _STEPS)
        HEAP.hold(self._megabytes << 20)
        try:
            with timer:
                cursor = self._db.cursor()
                cursor.exec_trace = lambda _, statement, __: not sql[len(statement) :].strip()
                cursor.execute(sql, values)
                row = next(cursor, None)
            names = [] if row is None else _names(cursor, sql)
            while row is not None:
                yield {name: json_value(datum) for name, datum in zip(names, row, strict=True)}
                with timer:
                    row = next(cursor, None)
        except UnicodeDecodeError as exc:
            hint = "read its bytes: CAST(… AS BLOB)"
            raise UsageError("the query returns a text that is not valid UTF-8", hint=hint) from exc
        except apsw.Error as exc:
            raise self._explained(exc, sql) from exc
        finally:
            HEAP.release()
            self._db.set_progress_handler(None)

    def _explained(self, exc: apsw.Error, sql: str) -> UsageError:
        position = _position(sql, getattr(exc, "error_offset", -1))
        if isinstance(exc, apsw.InterruptError):
            return UsageError(f"the query took longer than {self._seconds:g} s", hint="allow more: --timeout SECONDS")
        if isinstance(exc, apsw.NoMemError):
            return UsageError(f"the query needs more than {self._megabytes} MB", hint="allow more: --memory MB")
        if isinstance(exc, apsw.ExecTraceAbort):
            return UsageError("the query has more than one statement", hint="write one SELECT")
        if isinstance(exc, apsw.AuthError | apsw.ReadOnlyError):
            hint = "the state is a copy for reading: write a SELECT of its tables"
            return UsageError("the query may only read the tables of the state", position=position, hint=hint)
        listed = ", ".join(self.tables) or "none"
        return UsageError(f"the query fails: {exc}", position=position, hint=f"the tables are: {listed}")


class _Timer:
    """Measures the time of a statement, without the time of the consumer of its rows (`with timer:`).

    Args:
        seconds: time limit.
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._begin = 0.0

    def __enter__(self) -> None:
        self._begin = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._left -= time.monotonic() - self._begin

    def is_over(self) -> bool:
        """Return whether the limit is exceeded."""
        return time.monotonic() - self._begin > self._left


def _schema(number: int) -> str:
    return f"shard{number}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _selects_of(db: apsw.Connection, select: str, numbers: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Yield the number of each shard with state, and a connector's SELECT with the number as the first column."""
    for number in numbers:
        sql = f"SELECT {number} AS {SHARD}, * FROM ({select.format(schema=_schema(number))})"
        try:
            db.execute(f"EXPLAIN {sql}").fetchall()
        except apsw.SQLError:  # the shard has no state
            continue
        yield number, sql


def _tables(db: apsw.Connection, numbers: Iterable[int]) -> Iterator[StateTable]:
    """Yield the tables and views of all shards, by name."""
    columns: dict[str, dict[str, None]] = {}
    shards: dict[str, list[int]] = {}
    for number in numbers:
        for name, kind in db.execute("SELECT name, type FROM pragma_table_list WHERE schema = ?", (_schema(number),)):
            if kind != "shadow" and not str(name).startswith(HIDDEN):
                columns.setdefault(name, {}).update(dict.fromkeys(_columns(db, _schema(number), name)))
                shards.setdefault(name, []).append(number)
    for name in sorted(columns):
        yield StateTable(name, tuple(columns[name]), tuple(shards[name]))


def _columns(db: apsw.Connection, schema: str, name: str) -> list[str]:
    sql = "SELECT name FROM pragma_table_xinfo(?, ?) WHERE hidden <> 1"
    return [str(row[0]) for row in db.execute(sql, (name, schema))]


def _select(db: apsw.Connection, table: StateTable, number: int) -> str:
    """Return the SELECT of the table of one shard; columns that only other shards have are NULL."""
    present = set(_columns(db, _schema(number), table.name))
    columns = [_quoted(name) if name in present else f"NULL AS {_quoted(name)}" for name in table.columns]
    listed = ", ".join([f"{number} AS {SHARD}", *columns])
    return f"SELECT {listed} FROM {_schema(number)}.{_quoted(table.name)}"


def _authorize(action: int, first: str | None, second: str | None, _: str | None, __: str | None) -> int:
    is_inner = action == apsw.SQLITE_PRAGMA and first in _INNER_PRAGMAS and second is None
    return apsw.SQLITE_OK if action in _READING or is_inner else apsw.SQLITE_DENY


def _names(cursor: apsw.Cursor, sql: str) -> list[str]:
    names = [str(column[0]) for column in cursor.description]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise UsageError(f"two columns of the query have the name '{name}'", position=_position(sql, -1), hint=_AS)
    return names


_AS = "name them with AS"


def json_value(datum: str | float | bytes | None) -> JSON:
    """Return a value of SQL as JSON: base64 for a BLOB, and a text for a number that JSON does not have."""
    if isinstance(datum, bytes):
        from base64 import b64encode

        return b64encode(datum).decode()
    if isinstance(datum, float) and datum in (float("inf"), float("-inf")):
        return "Infinity" if datum > 0 else "-Infinity"
    return datum


def _position(sql: str, size: int) -> Position:
    """Return the position in the statement, from SQLite's offset in bytes; its begin for -1."""
    before = sql.encode()[: max(size, 0)].decode(errors="ignore")
    begin = before.rfind("\n") + 1
    line = sql[begin:].split("\n", 1)[0]
    return Position("SQL", before.count("\n") + 1, len(before) - begin + 1, 1, line)
