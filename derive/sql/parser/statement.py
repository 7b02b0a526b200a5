"""Syntax trees of statements. Offsets count characters of the statement's text from 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from derive.sql.parser.ast import (
    NO_WITH,
    Alias,
    FromItem,
    IndexPart,
    QualifiedName,
    Query,
    SelectItem,
    SyntaxNode,
    TypeName,
    With,
)
from derive.sql.parser.object_definitions import CreateSequence, ObjectDefinition
from derive.sql.parser.sequences import AddIdentity, AlterSequence, DropIdentity, Identity, SetIdentity
from derive.sql.parser.transaction_statements import TransactionStatement

TEMPORARY = "pg_temp"
"""The schema of temporary relations in statements; each session has one of its own, whose name begins so."""


class ObjectKind(Enum):
    """The kind of a catalog object."""

    TABLE = "table"
    VIEW = "view"
    MATERIALIZED_VIEW = "materialized view"
    INDEX = "index"
    SOURCE = "source"
    SCHEMA = "schema"
    SEQUENCE = "sequence"
    FUNCTION = "function"
    DOMAIN = "domain"


@dataclass(frozen=True, slots=True)
class Default:
    """The expression of a DEFAULT, CHECK or GENERATED clause; `text` is the text of the expression."""

    expression: SyntaxNode
    text: str


class ConstraintKind(Enum):
    """The kind of a constraint of a table; the value is PostgreSQL's letter (`contype`), or `i`."""

    PRIMARY_KEY = "p"
    UNIQUE = "u"
    CHECK = "c"
    FOREIGN_KEY = "f"
    UNIQUE_INDEX = "i"
    """A key that CREATE UNIQUE INDEX made, which is no constraint to clients."""


@dataclass(frozen=True, slots=True)
class ConstraintDefinition:
    """A constraint of a table.

    Attributes:
        kind: kind of the constraint.
        name: name; None if the statement gives no name.
        offset: offset in the statement.
        columns: columns of a key, each with its offset.
        check: condition of a check, or of the rows in a unique index.
        references: the table that a foreign key refers to.
        referenced: its columns, each with its offset; none for its primary key.
        on_delete: effect of a deletion there: `a` (none), `r` (restrict), `c` (cascade), `n` (set null) or `d` (set
            default).
        on_update: effect of an update of the key there, with the same letters.
        deferral: `d` if the constraint is checked at COMMIT, `i` if SET CONSTRAINTS can defer it; else empty.
        parts: columns and expressions of a unique index that `columns` cannot express.
    """

    kind: ConstraintKind
    name: str | None
    offset: int
    columns: tuple[tuple[str, int], ...] = ()
    check: Default | None = None
    references: QualifiedName | None = None
    referenced: tuple[tuple[str, int], ...] = ()
    on_delete: str = "a"
    on_update: str = "a"
    deferral: str = ""
    parts: tuple[IndexPart, ...] = ()


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """A column definition of a table.

    Attributes:
        name: name of the column.
        type: type.
        is_nullable: whether the column may be NULL.
        offset: offset in the statement.
        default: DEFAULT clause.
        constraints: constraints of the column.
        identity: how the column gets numbers; None for an ordinary column.
        generated: expression of a generated column.
        numbering: options of an identity.
    """

    name: str
    type: TypeName
    is_nullable: bool
    offset: int
    default: Default | None = None
    constraints: tuple[ConstraintDefinition, ...] = ()
    identity: Identity | None = None
    generated: Default | None = None
    numbering: CreateSequence | None = None


@dataclass(frozen=True, slots=True)
class CreateTable:
    """`CREATE TABLE`, with columns and constraints, or AS a query.

    `on_commit` is `drop`, `delete` or empty. `has_rows` is false with WITH NO DATA.
    """

    name: QualifiedName
    columns: tuple[ColumnDefinition, ...]
    if_not_exists: bool = False
    query: Query | None = None
    column_names: tuple[str, ...] = ()
    constraints: tuple[ConstraintDefinition, ...] = ()
    on_commit: str = ""
    has_rows: bool = True


@dataclass(frozen=True, slots=True)
class CreateView:
    """`CREATE [OR REPLACE] [MATERIALIZED] VIEW`.

    Attributes:
        name: name of the view.
        columns: names of its first columns.
        query: query of the view.
        definition: text of the query.
        is_materialized: whether the view is materialized.
        or_replace: whether an existing view is replaced.
        if_not_exists: whether an existing relation is no error.
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
    """`CREATE [UNIQUE] INDEX [name] ON relation (parts) [INCLUDE (columns)] [WHERE condition]`.

    `name` is None without a name; there are no parts for an index on all columns; each included column has its offset.
    """

    name: QualifiedName | None
    relation: QualifiedName
    parts: tuple[IndexPart, ...]
    if_not_exists: bool = False
    is_unique: bool = False
    included: tuple[tuple[str, int], ...] = ()
    condition: Default | None = None


@dataclass(frozen=True, slots=True)
class CreateReplica:
    """`CREATE [CLUSTER] REPLICA name [(ADDRESS 'host:port')]`; without an address, the server starts a process."""

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
    """`FROM FILE 'path' FORMAT JSON | CSV`, a file that may grow; `format` is in lower case."""

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
    """`ADD [COLUMN] [IF NOT EXISTS] definition` of ALTER TABLE."""

    column: ColumnDefinition
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropColumn:
    """`DROP [COLUMN] [IF EXISTS] name [CASCADE | RESTRICT]` of ALTER TABLE."""

    name: str
    offset: int
    if_exists: bool = False
    is_cascading: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """`RENAME [COLUMN] name TO new_name` of ALTER TABLE."""

    name: str
    offset: int
    new_name: str
    new_offset: int


@dataclass(frozen=True, slots=True)
class SetDefault:
    """`ALTER [COLUMN] name SET DEFAULT expression`, or `DROP DEFAULT` if `default` is None."""

    name: str
    offset: int
    default: Default | None


@dataclass(frozen=True, slots=True)
class SetNullable:
    """`ALTER [COLUMN] name SET NOT NULL`, or `DROP NOT NULL`."""

    name: str
    offset: int
    is_nullable: bool


@dataclass(frozen=True, slots=True)
class SetType:
    """`ALTER [COLUMN] name TYPE type [USING expression]`; `using` is None without an expression."""

    name: str
    offset: int
    type: TypeName
    using: SyntaxNode | None = None


@dataclass(frozen=True, slots=True)
class AddConstraint:
    """`ADD [CONSTRAINT name] …` of ALTER TABLE."""

    constraint: ConstraintDefinition


@dataclass(frozen=True, slots=True)
class DropConstraint:
    """`DROP CONSTRAINT [IF EXISTS] name [CASCADE | RESTRICT]` of ALTER TABLE, or DROP INDEX of a unique index."""

    name: str
    offset: int
    if_exists: bool = False
    is_index: bool = False
    is_cascading: bool = False


@dataclass(frozen=True, slots=True)
class RenameConstraint:
    """`RENAME CONSTRAINT name TO new_name` of ALTER TABLE."""

    name: str
    offset: int
    new_name: str
    new_offset: int


TableAction: TypeAlias = (
    AddColumn
    | DropColumn
    | RenameColumn
    | SetDefault
    | SetNullable
    | SetType
    | AddConstraint
    | DropConstraint
    | RenameConstraint
    | AddIdentity
    | SetIdentity
    | DropIdentity
)
"""A change of a table's columns or constraints."""


@dataclass(frozen=True, slots=True)
class AlterTable:
    """`ALTER TABLE [IF EXISTS] name actions`; the kind is VIEW for `ALTER VIEW … RENAME COLUMN`."""

    name: QualifiedName
    actions: tuple[TableAction, ...]
    if_exists: bool = False
    kind: ObjectKind = ObjectKind.TABLE


@dataclass(frozen=True, slots=True)
class Rename:
    """`ALTER kind name RENAME TO new_name`."""

    kind: ObjectKind
    name: QualifiedName
    new_name: str
    new_offset: int
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class Comment:
    """`COMMENT ON kind name IS text`; `column` is the column of COMMENT ON COLUMN, and `text` None for NULL."""

    kind: ObjectKind | None
    name: QualifiedName
    text: str | None
    column: str | None = None


@dataclass(frozen=True, slots=True)
class Refresh:
    """`REFRESH MATERIALIZED VIEW name`."""

    name: QualifiedName


VacuumedTable: TypeAlias = tuple[QualifiedName, tuple[tuple[str, int], ...]]
"""A relation with columns, each with its offset."""


@dataclass(frozen=True, slots=True)
class Vacuum:
    """`VACUUM`, or `ANALYZE`; without tables, the statement is for all."""

    tables: tuple[VacuumedTable, ...]
    is_analyze: bool


@dataclass(frozen=True, slots=True)
class Grant:
    """`GRANT privileges ON … TO roles`, or `REVOKE`; each role has its offset.

    `relations` is empty for privileges of other objects.
    """

    relations: tuple[QualifiedName, ...]
    roles: tuple[tuple[str, int], ...]
    is_revoked: bool


@dataclass(frozen=True, slots=True)
class AsOf:
    """`AS OF [AT LEAST] time`; `clock` is the time in microseconds if the expression has been evaluated."""

    time: SyntaxNode
    is_at_least: bool
    clock: int | None = None


@dataclass(frozen=True, slots=True)
class SelectStatement:
    """A `SELECT` statement."""

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
class Assignment:
    """`column = value` of an UPDATE."""

    column: str
    value: SyntaxNode
    offset: int


@dataclass(frozen=True, slots=True)
class OnConflict:
    """`ON CONFLICT [(parts) [WHERE …] | ON CONSTRAINT name] DO NOTHING | DO UPDATE SET … [WHERE …]`.

    Attributes:
        offset: offset in the statement.
        parts: columns and expressions of the key; empty for none.
        constraint: name of the constraint, with its offset; None for none.
        assignments: assignments of DO UPDATE; empty for DO NOTHING.
        condition: condition of DO UPDATE.
        where: condition of the rows in a partial unique index.
    """

    offset: int
    parts: tuple[IndexPart, ...] = ()
    constraint: tuple[str, int] | None = None
    assignments: tuple[Assignment, ...] = ()
    condition: SyntaxNode | None = None
    where: Default | None = None


@dataclass(frozen=True, slots=True)
class Insert:
    """`[WITH …] INSERT INTO relation [(columns)] query | DEFAULT VALUES [ON CONFLICT …] [RETURNING …]`.

    Attributes:
        relation: name of the table.
        alias: alias of the table.
        columns: assigned columns, each with its offset; empty for all.
        query: query of the rows; None for DEFAULT VALUES.
        returning: RETURNING clause.
        common: WITH clause.
        overriding: `system` or `user` of OVERRIDING … VALUE; None without the clause.
        conflict: ON CONFLICT clause.
    """

    relation: QualifiedName
    alias: Alias | None
    columns: tuple[tuple[str, int], ...]
    query: Query | None
    returning: tuple[SelectItem, ...] = ()
    common: With = NO_WITH
    overriding: str | None = None
    conflict: OnConflict | None = None


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


class Match(Enum):
    """The rows of which a WHEN clause of MERGE decides; the value is the text of the clause."""

    BOTH = "WHEN MATCHED"
    SOURCE = "WHEN NOT MATCHED"
    TARGET = "WHEN NOT MATCHED BY SOURCE"


@dataclass(frozen=True, slots=True)
class MergeWhen:
    """A WHEN clause of MERGE; without insertion, assignments and deletion, it is DO NOTHING.

    Attributes:
        match: the rows of which it decides.
        condition: condition behind AND.
        offset: offset in the statement.
        insert: INSERT of at most one row of VALUES.
        assignments: assignments of UPDATE SET.
        is_delete: whether the action is DELETE.
    """

    match: Match
    condition: SyntaxNode | None
    offset: int
    insert: Insert | None = None
    assignments: tuple[Assignment, ...] = ()
    is_delete: bool = False


@dataclass(frozen=True, slots=True)
class Merge:
    """`[WITH …] MERGE INTO relation USING source ON condition WHEN … [RETURNING …]`."""

    relation: QualifiedName
    alias: Alias | None
    source: FromItem
    condition: SyntaxNode
    clauses: tuple[MergeWhen, ...]
    offset: int
    returning: tuple[SelectItem, ...] = ()
    common: With = NO_WITH


RowWrite: TypeAlias = Insert | Update | Delete | Merge
"""A statement that writes rows of a table."""


@dataclass(frozen=True, slots=True)
class CommonWrite:
    """A statement that writes, in WITH.

    Attributes:
        name: name of its RETURNING rows.
        columns: names of the first columns.
        statement: the statement.
        position: number of queries of the WITH clause that precede it.
        offset: start of the common table expression.
    """

    name: str
    columns: tuple[str, ...]
    statement: RowWrite
    position: int
    offset: int


@dataclass(frozen=True, slots=True)
class WithWrites:
    """`WITH …` with statements that write, and the main statement; all see the rows from before the statement."""

    common: With
    writes: tuple[CommonWrite, ...]
    statement: SelectStatement | RowWrite


@dataclass(frozen=True, slots=True)
class Truncate:
    """`TRUNCATE relations [RESTART IDENTITY] [CASCADE]`."""

    relations: tuple[QualifiedName, ...]
    restarts: bool = False
    cascades: bool = False


@dataclass(frozen=True, slots=True)
class LockTable:
    """`LOCK [TABLE] relations IN ACCESS SHARE MODE`."""

    relations: tuple[QualifiedName, ...]


@dataclass(frozen=True, slots=True)
class CopyFormat:
    """The format of rows in COPY.

    Attributes:
        name: `text`, `csv` or `binary`.
        delimiter: delimiter of values; one character.
        null: text of NULL.
        has_header: whether the first line has the column names.
        quote: quote of values in `csv`.
        escape: character before a quote in a value of `csv`.
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
class Declare:
    """`DECLARE name CURSOR [WITH HOLD] FOR …`."""

    name: str
    statement: SelectStatement | Subscribe
    offset: int
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """`FETCH [FORWARD] [count | ALL] [FROM] name [WITH (TIMEOUT = '…')]`; `count` is None for all rows."""

    name: str
    count: int | None
    offset: int
    timeout: str | None = None
    is_move: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """`CLOSE name`; `name` is None for all cursors."""

    name: str | None
    offset: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """`PREPARE name [(types)] AS statement`; `text` is the text of the statement, which starts at `begin`."""

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
    """`DEALLOCATE name`; `name` is None for all statements."""

    name: str | None
    offset: int


@dataclass(frozen=True, slots=True)
class Set:
    """`SET [SESSION | LOCAL] name = values`, and `RESET name`.

    `values` is None for the default, and `name` is `all` for all settings.
    """

    name: str
    values: tuple[str, ...] | None
    offset: int
    is_local: bool = False


@dataclass(frozen=True, slots=True)
class Show:
    """`SHOW name`; the name is in lower case, and `all` for all settings."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class ShowObjects:
    """`SHOW TABLES`, `SHOW COLUMNS FROM relation`, `SHOW CREATE … relation`; `what` is in lower case."""

    what: str
    relation: QualifiedName | None
    offset: int


class Explanation(Enum):
    """The kind of an EXPLAIN."""

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
    """`DISCARD ALL` and so on; `what` is in lower case, and `listeners` for UNLISTEN."""

    what: str


Statement: TypeAlias = (
    SelectStatement
    | Subscribe
    | CreateTable
    | CreateView
    | CreateIndex
    | CreateSource
    | AlterSequence
    | ObjectDefinition
    | CreateReplica
    | DropReplica
    | Drop
    | AlterTable
    | Rename
    | Comment
    | Refresh
    | Vacuum
    | Grant
    | RowWrite
    | WithWrites
    | Truncate
    | LockTable
    | Copy
    | TransactionStatement
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
"""A statement."""
