"""Statements as they were written. Offsets count characters of the statement's text from 0 on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from derive.sql.parser.ast import NO_WITH, Alias, FromItem, QualifiedName, Query, SelectItem, SyntaxNode, TypeName, With


class ObjectKind(Enum):
    """What a catalog names."""

    TABLE = "table"
    VIEW = "view"
    MATERIALIZED_VIEW = "materialized view"
    INDEX = "index"
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class Default:
    """`DEFAULT expression` of a column; `text` is the expression's."""

    expression: SyntaxNode
    text: str


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """A column of a new table."""

    name: str
    type: TypeName
    is_nullable: bool
    offset: int
    default: Default | None = None


@dataclass(frozen=True, slots=True)
class CreateTable:
    """`CREATE TABLE`; by columns, or AS a query, whose text is `definition`."""

    name: QualifiedName
    columns: tuple[ColumnDefinition, ...]
    if_not_exists: bool = False
    query: Query | None = None
    column_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateView:
    """`CREATE [OR REPLACE] [MATERIALIZED] VIEW`.

    Attributes:
        name: of the view.
        columns: names of its first columns.
        query: what it is.
        definition: the query's text.
        is_materialized: whether it is written to a collection.
        or_replace: whether it may take the name of another one.
        if_not_exists: whether nothing is to be done if the name is taken.
    """

    name: QualifiedName
    columns: tuple[str, ...]
    query: Query
    definition: str
    is_materialized: bool = False
    or_replace: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """`CREATE INDEX [name] ON relation (columns)`; `name` is None if it has none, each column has its offset."""

    name: QualifiedName | None
    relation: QualifiedName
    columns: tuple[tuple[str, int], ...]
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateSchema:
    """`CREATE SCHEMA name`, of which there is one."""

    name: str
    offset: int
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateReplica:
    """`CREATE [CLUSTER] REPLICA name [(ADDRESS 'host:port')]`; without an address the server starts a process."""

    name: str
    offset: int
    address: str | None = None
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropReplica:
    """`DROP [CLUSTER] REPLICA [IF EXISTS] name`."""

    name: str
    offset: int
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class CollectionSource:
    """`FROM COLLECTION name`: a collection of the catalog."""

    collection: str
    offset: int


@dataclass(frozen=True, slots=True)
class FileSource:
    """`FROM FILE 'path' FORMAT JSON | CSV`, which is followed as it grows; `format` in lower case."""

    path: str
    format: str
    offset: int
    options: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class CounterSource:
    """`FROM LOAD GENERATOR COUNTER [(TICK INTERVAL '…', MAX CARDINALITY n)]`."""

    offset: int
    tick_interval: str | None = None
    max_cardinality: int | None = None


@dataclass(frozen=True, slots=True)
class CreateSource:
    """`CREATE SOURCE`."""

    name: QualifiedName
    origin: CollectionSource | FileSource | CounterSource
    columns: tuple[ColumnDefinition, ...] = ()
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """`DROP kind [IF EXISTS] names [CASCADE | RESTRICT]`."""

    kind: ObjectKind
    names: tuple[QualifiedName, ...]
    if_exists: bool = False
    is_cascading: bool = False


@dataclass(frozen=True, slots=True)
class AddColumn:
    """`ADD [COLUMN] [IF NOT EXISTS] definition`."""

    column: ColumnDefinition
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropColumn:
    """`DROP [COLUMN] [IF EXISTS] name`."""

    name: str
    offset: int
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """`RENAME [COLUMN] name TO new_name`."""

    name: str
    offset: int
    new_name: str
    new_offset: int


@dataclass(frozen=True, slots=True)
class SetDefault:
    """`ALTER [COLUMN] name SET DEFAULT expression`, or `DROP DEFAULT`, where it is None."""

    name: str
    offset: int
    default: Default | None


@dataclass(frozen=True, slots=True)
class SetNullable:
    """`ALTER [COLUMN] name SET NOT NULL`, or `DROP NOT NULL`."""

    name: str
    offset: int
    is_nullable: bool


TableAction: TypeAlias = AddColumn | DropColumn | RenameColumn | SetDefault | SetNullable
"""What is done to the columns of a table."""


@dataclass(frozen=True, slots=True)
class AlterTable:
    """`ALTER TABLE [IF EXISTS] name actions`."""

    name: QualifiedName
    actions: tuple[TableAction, ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class Rename:
    """`ALTER kind name RENAME TO new_name`."""

    kind: ObjectKind
    name: QualifiedName
    new_name: str
    new_offset: int
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AsOf:
    """`AS OF [AT LEAST] time`."""

    time: SyntaxNode
    is_at_least: bool
    offset: int


@dataclass(frozen=True, slots=True)
class SelectStatement:
    """A query whose rows are wanted."""

    query: Query
    as_of: AsOf | None = None


@dataclass(frozen=True, slots=True)
class Subscribe:
    """`SUBSCRIBE [TO] name | (query) [WITH (…)] [AS OF t] [UP TO t]`."""

    target: QualifiedName | Query
    has_snapshot: bool = True
    has_progress: bool = False
    as_of: AsOf | None = None
    up_to: SyntaxNode | None = None


@dataclass(frozen=True, slots=True)
class Insert:
    """`[WITH …] INSERT INTO relation [(columns)] query | DEFAULT VALUES [RETURNING …]`.

    `query` is None for DEFAULT VALUES.
    """

    relation: QualifiedName
    alias: Alias | None
    columns: tuple[tuple[str, int], ...]
    query: Query | None
    returning: tuple[SelectItem, ...] = ()
    common: With = NO_WITH


@dataclass(frozen=True, slots=True)
class Assignment:
    """`column = value` of an UPDATE."""

    column: str
    value: SyntaxNode
    offset: int


@dataclass(frozen=True, slots=True)
class Update:
    """`[WITH …] UPDATE relation SET … [FROM …] [WHERE …] [RETURNING …]`."""

    relation: QualifiedName
    alias: Alias | None
    assignments: tuple[Assignment, ...]
    tables: tuple[FromItem, ...] = ()
    condition: SyntaxNode | None = None
    returning: tuple[SelectItem, ...] = ()
    common: With = NO_WITH


@dataclass(frozen=True, slots=True)
class Delete:
    """`[WITH …] DELETE FROM relation [USING …] [WHERE …] [RETURNING …]`."""

    relation: QualifiedName
    alias: Alias | None
    tables: tuple[FromItem, ...] = ()
    condition: SyntaxNode | None = None
    returning: tuple[SelectItem, ...] = ()
    common: With = NO_WITH


@dataclass(frozen=True, slots=True)
class Truncate:
    """`TRUNCATE relations`."""

    relations: tuple[QualifiedName, ...]


@dataclass(frozen=True, slots=True)
class CopyFormat:
    """How rows are written in COPY.

    Attributes:
        name: `text`, `csv` or `binary`.
        delimiter: between values; one character.
        null: what stands for NULL.
        has_header: whether the first line has names.
        quote: around values of `csv`.
        escape: before a quote in a value of `csv`.
    """

    name: str = "text"
    delimiter: str = "\t"
    null: str = "\\N"
    has_header: bool = False
    quote: str = '"'
    escape: str = '"'


@dataclass(frozen=True, slots=True)
class Copy:
    """`COPY relation [(columns)] FROM STDIN` and `COPY relation [(columns)] | (query) TO STDOUT`."""

    source: QualifiedName | SelectStatement | Subscribe
    columns: tuple[tuple[str, int], ...]
    is_from: bool
    format: CopyFormat = field(default_factory=CopyFormat)


@dataclass(frozen=True, slots=True)
class TransactionModes:
    """What is said of a transaction; None where nothing is. `isolation` is in lower case, such as `serializable`."""

    isolation: str | None = None
    is_read_only: bool | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """`BEGIN` and `START TRANSACTION`."""

    modes: TransactionModes = TransactionModes()


@dataclass(frozen=True, slots=True)
class Commit:
    """`COMMIT` and `END`."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """`ROLLBACK` and `ABORT`."""


@dataclass(frozen=True, slots=True)
class SetSavepoint:
    """`SAVEPOINT name`."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class ReleaseSavepoint:
    """`RELEASE [SAVEPOINT] name`."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class RollbackTo:
    """`ROLLBACK TO [SAVEPOINT] name`."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class SetTransaction:
    """`SET TRANSACTION …`, or `SET SESSION CHARACTERISTICS AS TRANSACTION …`."""

    modes: TransactionModes
    is_session: bool = False


@dataclass(frozen=True, slots=True)
class Declare:
    """`DECLARE name CURSOR [WITH HOLD] FOR …`."""

    name: str
    statement: SelectStatement | Subscribe
    offset: int
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """`FETCH [FORWARD] [count | ALL] [FROM] name [WITH (TIMEOUT = '…')]`; `count` None for all."""

    name: str
    count: int | None
    offset: int
    timeout: str | None = None
    is_move: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """`CLOSE name`; None for all cursors."""

    name: str | None
    offset: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """`PREPARE name [(types)] AS statement`; `text` is the statement's, which begins at `begin`."""

    name: str
    types: tuple[TypeName, ...]
    statement: Statement
    text: str
    offset: int
    begin: int


@dataclass(frozen=True, slots=True)
class Execute:
    """`EXECUTE name [(arguments)]`."""

    name: str
    arguments: tuple[SyntaxNode, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Deallocate:
    """`DEALLOCATE name`; None for all."""

    name: str | None
    offset: int


@dataclass(frozen=True, slots=True)
class Set:
    """`SET [SESSION | LOCAL] name = values`, and `RESET name`.

    `values` is None for the default, and the name is `all` for all settings.
    """

    name: str
    values: tuple[str, ...] | None
    offset: int
    is_local: bool = False


@dataclass(frozen=True, slots=True)
class Show:
    """`SHOW name`, in lower case; `all` for all settings."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class ShowObjects:
    """`SHOW TABLES` and so on, and `SHOW COLUMNS FROM relation`, `SHOW CREATE … relation`; `what` in lower case."""

    what: str
    relation: QualifiedName | None
    offset: int


class Explanation(Enum):
    """What EXPLAIN is asked for."""

    PLAN = "plan"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Explain:
    """`EXPLAIN [PLAN FOR | TIMESTAMP FOR] …`."""

    statement: Statement
    explanation: Explanation
    offset: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Discard:
    """`DISCARD ALL` and so on; `what` in lower case, `listeners` for the `UNLISTEN` that drivers end a session with."""

    what: str


Statement: TypeAlias = (
    SelectStatement
    | Subscribe
    | CreateTable
    | CreateView
    | CreateIndex
    | CreateSource
    | CreateSchema
    | CreateReplica
    | DropReplica
    | Drop
    | AlterTable
    | Rename
    | Insert
    | Update
    | Delete
    | Truncate
    | Copy
    | Begin
    | Commit
    | Rollback
    | SetSavepoint
    | ReleaseSavepoint
    | RollbackTo
    | SetTransaction
    | Declare
    | Fetch
    | Close
    | Prepare
    | Execute
    | Deallocate
    | Set
    | Show
    | ShowObjects
    | Explain
    | Discard
)
"""Everything that a session carries out."""
