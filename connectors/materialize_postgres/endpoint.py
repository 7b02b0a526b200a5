"""A connection to a PostgreSQL server: the transfer of rows and documents, and the translation of errors.

Few rows are staged in memory. Then the commit is one pipeline, which takes one round trip, and a process that is
stopped during the commit keeps no lock.

Many rows are sent by COPY as they arrive, in a transaction that begins with the first of them. New rows are sent to
their table, and other rows to a temporary table, from which one statement moves them. A thread sends rows, so that the
next rows are prepared while the server stores the previous ones. A process that is stopped keeps its locks, and its
successor closes its connection.

Many documents are loaded by a second connection while the first connection commits the previous transaction. The two do
not conflict, because keys that are being committed are not loaded.

Documents are `json`, not `jsonb`, because `jsonb` refuses the character NUL and writes 1e22 as an integer, which
changes the document. Numbers are `numeric`, which has all of JSON's numbers, unless a schema bounds them to 64 bits.
Every value is sent as text, because only text is exact: a double is cast to `numeric` with 15 digits.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from connectors.kit.requests import Value
from connectors.materialize_sql.column import Column, ExistingColumn, ExistingTable, Kind, Naming, Table, quote
from connectors.materialize_sql.dialect import Dialect, upsert
from connectors.materialize_sql.endpoint import Change, Columns, Fence, hold, renew, renewal, supersede, translating
from connectors.materialize_sql.values import Encoder, encoder, key_text, unfit
from derive.errors import BusyError, DeniedError, DiskFullError, EndpointError, EndpointGoneError, FlowError

POSTGRES = Dialect(
    title="PostgreSQL",
    naming=Naming(most_bytes=63, taken=frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})),
    types={
        Kind.BOOLEAN: "boolean",
        Kind.BIGINT: "bigint",
        Kind.INTEGER: "numeric",
        Kind.NUMBER: "numeric",
        Kind.DECIMAL: "numeric",
        Kind.TEXT: "text",
        Kind.DATE: "date",
        Kind.TIMESTAMP: "timestamp with time zone",
        Kind.JSON: "json",
    },
    json_key="character varying",
    bytes_type="bytea",
    mark="$",
    widenings=frozenset({("bigint", "numeric")}),
    most_columns=1600,
    no_equality=frozenset({"json"}),
)

_NUMBERS = frozenset({Kind.BIGINT, Kind.INTEGER, Kind.NUMBER})
_BOOLEANS = {True: "t", False: "f", None: None}


def encoder_of(column: Column) -> Encoder:
    """Return the encoder of a column from packed values to their texts, and None."""
    if column.kind is Kind.JSON and column.is_key:
        return lambda values: _without_nul(list(map(key_text, values)))
    checked = encoder(column.kind)
    if column.kind is Kind.BOOLEAN:
        return lambda values: [_BOOLEANS[value] for value in checked(values)]
    if column.kind in _NUMBERS:
        return lambda values: [None if value is None else repr(value) for value in checked(values)]
    return lambda values: _without_nul(checked(values))


def _without_nul(texts: Sequence[Any]) -> Sequence[Value]:
    if "\0" in "".join(filter(None, texts)):
        raise unfit(texts, lambda text: "\0" not in text, "has the character NUL, which PostgreSQL's texts cannot have")
    return texts


_SPECIAL = ("\\", "\t", "\n", "\r")
_ESCAPED = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))


def copy_text(columns: Sequence[Sequence[str | None]]) -> bytes:
    """Return rows in the text format of COPY.

    Args:
        columns: the texts of each column's values, and None.
    """
    lines = map("\t".join, zip(*map(_escaped, columns), strict=True))
    return ("\n".join(lines) + "\n").encode()


def _escaped(texts: Sequence[str | None]) -> Sequence[str]:
    try:
        joined = "".join(texts)  # type: ignore[arg-type]
    except TypeError:
        return ["\\N" if text is None else _escape(text) for text in texts]
    if any(special in joined for special in _SPECIAL):
        return [_escape(text) for text in texts if text is not None]
    return texts  # type: ignore[return-value]


def _escape(text: str) -> str:
    for special, escape in _ESCAPED:
        if special in text:
            text = text.replace(special, escape)
    return text


def array_text(texts: Sequence[str]) -> str:
    """Return the text of an array of texts.

    Args:
        texts: texts of the elements, without None.
    """
    joined = '","'.join(texts)
    if "\\" in joined or joined.count('"') != 2 * max(len(texts) - 1, 0):
        joined = '","'.join([text.replace("\\", "\\\\").replace('"', '\\"') for text in texts])
    return f'{{"{joined}"}}' if texts else "{}"


_BY_STATE: dict[str, tuple[type[FlowError], str | None]] = {
    "25006": (DeniedError, "the server, or this role, is read-only; configure one that may write"),
    "42501": (DeniedError, "grant the missing right to the role: to create, read and write tables in the schema"),
    "28": (DeniedError, "check user and password"),
    "3D000": (EndpointError, "create the database, or name another"),
    "3F000": (EndpointError, "create the schema, or name another"),
    "40": (BusyError, "another transaction changed the same rows; flowctl retries"),
    "53100": (DiskFullError, "make space on the server's disk"),
    "53": (EndpointGoneError, "the server has no free connections or memory"),
    "54001": (EndpointError, "exclude fields that are nested too deeply"),
    "54011": (EndpointError, "exclude fields: a table of PostgreSQL has at most 1,600 columns, dropped ones included"),
    "54": (EndpointError, "see the limits of PostgreSQL, and exclude fields"),
    "55": (BusyError, "another session holds a lock; flowctl retries"),
    "57": (EndpointGoneError, "the server is stopping or starting; flowctl retries"),
    "58": (EndpointGoneError, "see the server's log"),
    "08": (EndpointGoneError, "check that the server runs and that this address is correct"),
}
"""Class of the error, and its hint, by SQLSTATE or by prefix of the SQLSTATE."""

_LIMITS = (
    (re.compile("index row"), "keys of a table may have about 2,700 bytes in PostgreSQL"),
    (re.compile("row is too big"), "exclude fields: a row may have 8,160 bytes beside values that are kept elsewhere"),
    (re.compile("columns in an index"), "take fewer fields into the key: it has at most 32 columns in PostgreSQL"),
    (re.compile("string|field|length|memory|buffer"), "values may have 1 GB in PostgreSQL"),
)
"""Errors of PostgreSQL about limits that share an SQLSTATE: a part of the message, and a remedy."""

_BY_TEXT = (
    (
        re.compile(r"password authentication failed|no password supplied|no pg_hba.conf entry|not permitted to log in"),
        "28",
    ),
    (re.compile('role ".*" does not exist'), "28"),
    (re.compile("permission denied for database"), "42501"),
    (re.compile('database ".*" does not exist'), "3D000"),
    (re.compile("too many (clients|connections)|remaining connection slots"), "53"),
)
"""SQLSTATE of a refused connection, by a part of its message, because psycopg has no code for it."""


def explain(where: str, exc: psycopg.Error) -> FlowError:
    """Return the translated error of a database."""
    diagnosis = exc.diag
    lines = str(exc).strip().splitlines() or [type(exc).__name__]
    context = (diagnosis.context or "").splitlines()[:1]
    texts = [text for text in (diagnosis.message_primary or lines[0], diagnosis.message_detail, *context) if text]
    state = exc.sqlstate or _guess(exc)
    kind, hint = _BY_STATE.get(state) or _BY_STATE.get(state[:2]) or (EndpointError, None)
    if state in ("54000", "54011"):
        hint = next((remedy for pattern, remedy in _LIMITS if pattern.search(texts[0])), hint)
    return kind(f"PostgreSQL {where}: {'; '.join(texts)}", hint=hint)


translated = partial(translating, psycopg.Error, explain)
"""Return a context that translates errors of a named database."""


def _guess(exc: psycopg.Error) -> str:
    if not isinstance(exc, psycopg.OperationalError):
        return ""
    return next((state for pattern, state in _BY_TEXT if pattern.search(str(exc))), "08")


class Staging:
    """Staged rows of one table, in memory or in a temporary table, and the statements that move them.

    Attributes:
        deleted: keys of rows to delete, each component as the text of an array.
        rows: number of rows in memory.
        bytes: total size of their documents.
        select: statement that returns the documents of some keys; its parameters are the arrays of each component.
        copy: COPY statement of new rows into the table.

    Args:
        index: index of the table in the session.
        table: table of the rows.
    """

    def __init__(self, index: int, table: Table) -> None:
        self._table = table
        self._name = f"flow_staged_{index}"
        temporary = f"pg_temp.{quote(self._name)}"
        target = POSTGRES.table(table.path)
        self._names = ", ".join(quote(column.name) for column in table.columns)
        self.copy = f"COPY {target} ({self._names}) FROM STDIN"
        self._copy_temporary = f"COPY {temporary} ({self._names}) FROM STDIN"
        self._insert = upsert(POSTGRES, table)
        self._move = upsert(POSTGRES, table, f"SELECT {self._names} FROM {temporary}")
        self._truncate = f"TRUNCATE {temporary}"
        self.select = _select(table)
        self._delete = _delete(table)
        self._new: list[list[Any]] = [[] for _ in table.columns]
        self._others: list[list[Any]] = [[] for _ in table.columns]
        self.deleted: list[list[str]] = []
        self.rows = 0
        self.bytes = 0
        self._is_created = False

    def add(self, columns: Columns, change: Change) -> None:
        """Add rows, whose documents are bytes."""
        self.rows += len(columns[0])
        if self._table.document is not None:
            self.bytes += sum(map(len, columns[-1]))
            columns = [*columns[:-1], list(map(bytes.decode, columns[-1]))]
        for kept, column in zip(self._new if change == "insert" else self._others, columns, strict=True):
            kept.extend(column)

    def take(self) -> tuple[Columns | None, Columns | None]:
        """Remove and return the rows in memory: new rows, and rows that may exist already. None stands for no rows."""
        new, others = self._new, self._others
        self._new, self._others = [[] for _ in self._table.columns], [[] for _ in self._table.columns]
        self.rows = self.bytes = 0
        return new if new[0] else None, others if others[0] else None

    def copy_others(self, connection: psycopg.Connection[Any], texts: Iterable[bytes]) -> None:
        """Store rows that may exist already, in the text format of COPY, through a temporary table."""
        if not self._is_created:
            target = POSTGRES.table(self._table.path)
            connection.execute(
                f"CREATE TEMPORARY TABLE {quote(self._name)} AS SELECT {self._names} FROM {target} WITH NO DATA"
            )
            self._is_created = True
        with connection.cursor() as cursor, cursor.copy(self._copy_temporary) as copy:
            for text in texts:
                copy.write(text)
        connection.execute(self._move)
        connection.execute(self._truncate)

    def write(self, cursor: psycopg.Cursor[Any]) -> None:
        """Store and delete all staged rows."""
        for columns in self.take():
            if columns is not None:
                cursor.executemany(self._insert, list(zip(*columns, strict=True)))
        for keys in self.deleted:
            cursor.execute(self._delete, keys)
        self.deleted.clear()


def _select(table: Table) -> str:
    """Return a statement for the documents of some keys, as bytes of their texts; its parameters are arrays of texts.

    PostgreSQL would plan a join by estimates, and usually read the whole table. These statements look up each key.
    """
    document = "NULL" if table.document is None else f"stored.{quote(table.document)}"
    text = f"convert_to({document}::text, 'UTF8')"
    stored = f"FROM {POSTGRES.table(table.path)} AS stored"
    if len(table.keys) == 1:
        return f"SELECT {text} {stored} WHERE {_is_any(table)} AND {document} IS NOT NULL"
    desired, matches = _matching(table)
    row = f"SELECT {text} AS text {stored} WHERE {matches} AND {document} IS NOT NULL LIMIT 1"
    return f"SELECT loaded.text FROM {desired} CROSS JOIN LATERAL ({row}) AS loaded"


def _delete(table: Table) -> str:
    """Return a statement that deletes the rows of some keys; its parameters are arrays of texts."""
    target = f"DELETE FROM {POSTGRES.table(table.path)} AS stored"
    if len(table.keys) == 1:
        return f"{target} WHERE {_is_any(table)}"
    desired, matches = _matching(table)
    return f"{target} USING {desired} WHERE {matches}"


def _is_any(table: Table) -> str:
    (key,) = table.keys
    return f"stored.{quote(key.name)} = ANY ($1::{key.type}[])"


def _matching(table: Table) -> tuple[str, str]:
    """Return SQL of a table of keys, whose parameters are arrays of texts, and the condition that joins rows to it."""
    arrays = ", ".join(f"${number}::text[]" for number in range(1, len(table.keys) + 1))
    names = ", ".join(f"key_{number}" for number in range(len(table.keys)))
    conditions = " AND ".join(
        f"stored.{quote(column.name)} = wanted.key_{number}::{column.type}" for number, column in enumerate(table.keys)
    )
    return f"unnest({arrays}) AS wanted ({names})", conditions


_FEW_ROWS = 200
_FEW_BYTES = 64 << 10
_MOST_BYTES = 64 << 20
"""Maximum bytes of sent rows that are kept in memory, because they may have to be sent again."""

_KEYS_AT_ONCE = 4_000
_MOST_AHEAD_BYTES = 16 << 20
"""Maximum bytes of documents that are loaded in advance."""

_MOST_SENT = 2
"""Maximum number of parts that are being sent."""

_CANCEL_SECONDS = 5.0


class PostgresTransfer:
    """A `Transfer` into PostgreSQL.

    Args:
        where: name of the database in messages.
        connection: connection to it.
        another: function that opens another connection.
        tables: tables of the rows.
        fence: the fence of their commits.
    """

    def __init__(
        self,
        where: str,
        connection: psycopg.Connection[Any],
        another: Callable[[], psycopg.Connection[Any]],
        tables: Sequence[Table],
        fence: Fence,
    ) -> None:
        self._where = where
        self._connection = connection
        self._another = another
        self._reading: psycopg.Connection[Any] | None = None
        self._fence = fence
        self._renew = f"WITH renewed AS ({renew(POSTGRES, fence)} RETURNING 1) SELECT 1 / count(*) FROM renewed"
        self._hold = f"SELECT 1 / count(*) FROM ({hold(POSTGRES, fence)} FOR UPDATE) AS held"
        self._staging = [Staging(index, table) for index, table in enumerate(tables)]
        self._copying = _Copying(connection)
        self._sender = ThreadPoolExecutor(1, "send")
        self._sent: deque[Future[None]] = deque()

    def load(self, index: int, keys: Columns) -> Iterable[bytes]:
        """Return the documents of some keys.

        If they are many, the first are loaded at once, and the others on demand.
        """
        many = bool(keys) and len(keys[0]) > _FEW_ROWS
        if many and self._reading is None:
            # if the server has no free connection, loads and commits share one
            with suppress(psycopg.OperationalError):
                self._reading = self._another()
        if not many or self._reading is None:
            return self._load(index, keys, self._connection)
        documents = self._load(index, keys, self._reading)
        ahead, size = [], 0
        for document in documents:
            ahead.append(document)
            size += len(document)
            if size > _MOST_AHEAD_BYTES:
                break
        return chain(ahead, documents)

    def _load(self, index: int, keys: Columns, by: psycopg.Connection[Any]) -> Iterator[bytes]:
        statement, count = self._staging[index].select, len(keys[0]) if keys else 0
        with translated(self._where):
            for begin in range(0, count, _KEYS_AT_ONCE):
                some = [array_text(column[begin : begin + _KEYS_AT_ONCE]) for column in keys]
                for (document,) in by.execute(statement, some, binary=True):
                    yield document

    def stage(self, index: int, columns: Columns, change: Change) -> None:
        """Stage rows to store, or keys to delete."""
        staging = self._staging[index]
        if change == "delete":
            staging.deleted.append([*map(array_text, columns)])
            return
        staging.add(columns, change)
        if staging.rows > _FEW_ROWS or staging.bytes > _FEW_BYTES:
            self._await_sent(_MOST_SENT - 1)
            new, others = (None if some is None else copy_text(some) for some in staging.take())
            self._sent.append(self._sender.submit(self._send, staging, new, others))

    def commit(self, checkpoint: bytes) -> None:
        """Store the staged rows and the checkpoint in one transaction."""
        self._await_sent(0)
        try:
            self._copying.finish()
            with self._connection.pipeline(), self._connection.cursor() as cursor:
                if not self._has_begun:
                    cursor.execute("BEGIN")
                cursor.execute(self._renew, renewal(self._fence, checkpoint))
                if self._fence.narrower:
                    cursor.execute(supersede(POSTGRES, self._fence), self._fence.span)
                for staging in self._staging:
                    staging.write(cursor)
                cursor.execute("COMMIT")
        except psycopg.Error as exc:
            raise self._failure(exc) from exc

    def close(self) -> None:
        """Discard the staged rows, and close the connections."""
        if any(not sent.done() for sent in self._sent):
            with suppress(psycopg.Error):
                self._connection.cancel_safe(timeout=_CANCEL_SECONDS)
        self._sender.shutdown(cancel_futures=True)
        self._connection.close()
        if self._reading is not None:
            self._reading.close()

    @property
    def _has_begun(self) -> bool:
        return self._connection.info.transaction_status == TransactionStatus.INTRANS

    def _await_sent(self, most: int) -> None:
        """Wait until at most `most` parts are still being sent."""
        while len(self._sent) > most:
            try:
                self._sent.popleft().result()
            except psycopg.Error as exc:
                self._sent.clear()
                raise self._failure(exc) from exc

    def _send(self, staging: Staging, new: bytes | None, others: bytes | None) -> None:
        """Send many rows, in the transaction of the next commit."""
        if not (self._copying or self._has_begun):
            self._connection.execute("BEGIN")
            # From now on the row of the checkpoint is locked, so that a successor waits for this session, or
            # ends it.
            self._connection.execute(self._hold, renewal(self._fence, b"")[1:])
        if new:
            self._copying.write(staging, new)
        if others:
            self._copying.finish()
            staging.copy_others(self._connection, [others])

    def _failure(self, exc: psycopg.Error) -> Exception:
        self._sender.submit(self._copying.abandon).result()
        if not self._connection.closed:
            self._connection.rollback()
        return self._fence.lost() if isinstance(exc, psycopg.errors.DivisionByZero) else explain(self._where, exc)


class _Copying:
    """A running COPY of new rows into one table at a time.

    COPY refuses rows whose keys exist already. So sent rows are kept until COPY succeeds; if it fails, they are sent
    again as rows that replace other rows.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._staging: Staging | None = None
        self._copy: psycopg.Copy | None = None
        self._stack = ExitStack()
        self._sent: list[bytes] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return self._copy is not None

    def write(self, staging: Staging, text: bytes) -> None:
        """Send rows of a table."""
        if self._staging is not staging or self._bytes > _MOST_BYTES:
            self.finish()
        if self._copy is None:
            self._connection.execute("SAVEPOINT new_rows")
            self._staging = staging
            cursor = self._stack.enter_context(self._connection.cursor())
            self._copy = self._stack.enter_context(cursor.copy(staging.copy))
        self._sent.append(text)
        self._bytes += len(text)
        self._copy.write(text)

    def finish(self) -> None:
        """Wait until all sent rows are stored."""
        staging, sent = self._staging, self._sent
        if staging is None:
            return
        self._staging, self._copy, self._sent, self._bytes = None, None, [], 0
        try:
            self._stack.close()
            self._connection.execute("RELEASE new_rows")
        except psycopg.errors.UniqueViolation:
            self._connection.execute("ROLLBACK TO new_rows")
            staging.copy_others(self._connection, sent)

    def abandon(self) -> None:
        """Discard the sent rows; their transaction is rolled back."""
        self._staging, self._copy, self._sent, self._bytes = None, None, [], 0
        with suppress(psycopg.Error):
            self._stack.close()


_PATIENCE = 10
"""Seconds to wait for a server that does not answer."""

_LONG = "60s"
"""Maximum wait for a lock."""

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, coalesce(col_description(c.oid, a.attnum), ''),
  a.atthasdef OR a.attidentity <> '', coalesce(a.attnum = ANY (i.indkey), false), c.relkind::text
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE n.nspname = $1 AND c.relname = $2
ORDER BY a.attnum
"""


def connect(config: Any, *, for_writing: bool) -> PostgresEndpoint:
    """Return a connection to the database of a configuration.

    Args:
        config: configuration that satisfies the connector's schema.
        for_writing: not used.
    """
    host, port = _address(config["address"])
    database = config.get("database", config["user"])
    where = f"database '{database}' at {config['address']}"

    def connection() -> psycopg.Connection[Any]:
        opened = psycopg.connect(
            host=host,
            port=port,
            user=config["user"],
            password=config["password"],
            dbname=database,
            sslmode=config.get("sslmode", "prefer"),
            connect_timeout=_PATIENCE,
            keepalives_idle=30,
            application_name="materialize-postgres",
            client_encoding="UTF8",
            autocommit=True,
            cursor_factory=psycopg.RawCursor,
        )
        opened.execute(f"SET lock_timeout = '{_LONG}'")
        return opened

    with translated(where):
        return PostgresEndpoint(where, connection)


def _address(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if address.startswith("/") or not colon or address.endswith("]"):
        return address.strip("[]"), 5432
    if not port.isdecimal():
        raise EndpointError(f"the address '{address}' has no port after its colon", hint="write host:port")
    return host.strip("[]"), int(port)


class PostgresEndpoint:
    """An `Endpoint` of PostgreSQL.

    Args:
        where: name of the database in messages.
        connect: function that opens a connection in autocommit mode.
    """

    def __init__(self, where: str, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._where = where
        self._connect = connect
        self._connection = connect()

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        with translated(self._where):
            cursor = self._connection.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Execute the block in one transaction."""
        with translated(self._where), self._connection.transaction():
            yield

    def describe(self, path: Sequence[str]) -> ExistingTable | None:
        """Return the current definition of a table."""
        rows = self.query(_COLUMNS, path)
        if not rows:
            return None
        if rows[0][-1] not in ("r", "p"):
            raise EndpointError(
                f"'{'.'.join(path)}' in {self._where} is not a table",
                hint="name a table, or a table that does not exist",
            )
        columns = {
            name: ExistingColumn(name, of, not_null, comment, has_default)
            for name, of, not_null, comment, has_default, _, _ in rows
            if name is not None
        }
        return ExistingTable(columns, frozenset(row[0] for row in rows if row[5]))

    def transfer(self, tables: Sequence[Table], fence: Fence) -> PostgresTransfer:
        """Return a transfer of rows."""
        return PostgresTransfer(self._where, self._connection, self._connect, tables, fence)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
