"""Statements that define relations, and end or rename them, as they were written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from derive.sql.parser.ast import QualifiedName, SyntaxNode, TypeName
from derive.sql.parser.query_syntax import Query


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
