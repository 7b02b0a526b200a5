"""Collections and inputs: the values from which all other specs are made; quarantines, and names of SQL's collections.

Catalogs may declare and read some of the collections of SQL, and only SQL writes them.

The quarantine of a derivation has the source documents that it has put aside. It is written in the derivation's
transactions. Each transform that puts documents aside also has a collection of retried documents, which it reads
together with its source. No name in a catalog has an `@`, so these collections have names of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, TypeAlias

from derive.document.pointer import JSON
from derive.position import Position
from derive.schema.projection import Declared, ProjectionSpec, project
from derive.schema.redaction import Redaction
from derive.schema.shape import infer

SQL_PREFIX = "sql/public/"
"""Prefix of the names of tables, sources and materialized views; the SQL name follows."""

POSITION_PREFIX = "sql@position/public/"
"""Prefix of tables with the positions of sources; no name in a catalog or in SQL has an `@` there."""


def is_of_sql(name: str) -> bool:
    """Return true if a name in Storage belongs to SQL."""
    return name.startswith((SQL_PREFIX, POSITION_PREFIX))


def is_internal(name: str) -> bool:
    """Return true if a name in Storage belongs to a table that SQL hides, or to a table that has lost its name."""
    return name.startswith((POSITION_PREFIX, "@"))


def aside_name(name: str, identifier: int) -> str:
    """Return the name in Storage of a dropped table that has lost its name, or of a new table before its commit.

    >>> aside_name("sql/public/t", 7)
    '@7/sql/public/t'
    """
    return f"@{identifier}/{intended_name(name)}"


def intended_name(name: str) -> str:
    """Return the former name of a table that has lost its name; return other names unchanged.

    >>> intended_name("@7/sql/public/t")
    'sql/public/t'
    """
    return name.partition("/")[2] if name.startswith("@") else name


Document: TypeAlias = dict[str, Any]
"""A JSON object of a collection."""

CollectionKind: TypeAlias = Literal["reduced", "consolidated"]
"""Kind of a collection: documents that are reduced per key, or changes of a multiset of documents."""


@dataclass(frozen=True, slots=True)
class CollectionSpec:
    """A collection: documents with a key, a schema and projections.

    Attributes:
        name: name, such as `acmeBank/transfers`.
        key: JSON pointers of the key.
        key_defaults: value of each key pointer for documents that lack it.
        write_schema: JSON Schema of published documents (2020-12, self-contained: every `$ref` resolves inside).
        read_schema: JSON Schema of documents for readers (2020-12, self-contained).
        projections: projections, sorted by field.
        position: position in the catalog.
        write_positions: position of each keyword of `write_schema`, by its JSON pointer.
        read_positions: position of each keyword of `read_schema`, by its JSON pointer.
        kind: `reduced` if documents are reduced per key; `consolidated` for a multiset, whose rows insert or retract
            documents.
        redaction: redaction of documents before they are stored, after which the schemas apply; None for none.
    """

    name: str
    key: tuple[str, ...]
    key_defaults: tuple[JSON, ...]
    write_schema: JSON
    read_schema: JSON
    projections: tuple[ProjectionSpec, ...]
    position: Position
    write_positions: Mapping[str, Position] = field(default_factory=dict)
    read_positions: Mapping[str, Position] = field(default_factory=dict)
    kind: CollectionKind = "reduced"
    redaction: Redaction | None = None

    @property
    def input_schema(self) -> JSON:
        """Return the JSON Schema of documents before redaction, which gives the types of ingested values."""
        return self.write_schema if self.redaction is None else self.redaction.schema

    @property
    def partitions(self) -> tuple[ProjectionSpec, ...]:
        """Return the logical partitions, sorted by field."""
        return tuple(projection for projection in self.projections if projection.is_partition)


@dataclass(frozen=True, slots=True)
class SelectorSpec:
    """A selection of logical partitions: all included fields match, and no excluded field does.

    Attributes:
        include: permitted values by field.
        exclude: forbidden values by field.
    """

    include: Mapping[str, tuple[JSON, ...]] = field(default_factory=dict)
    exclude: Mapping[str, tuple[JSON, ...]] = field(default_factory=dict)

    @property
    def selects_all(self) -> bool:
        """Return true if the documents of every logical partition are selected."""
        return not any(self.include.values()) and not any(self.exclude.values())

    def selects(self, partition: Mapping[str, JSON]) -> bool:
        """Return true if documents of this logical partition (value by field) are selected."""
        included = all(_among(partition.get(name), values) for name, values in self.include.items() if values)
        excluded = any(_among(partition.get(name), values) for name, values in self.exclude.items())
        return included and not excluded


def _among(value: JSON, values: tuple[JSON, ...]) -> bool:
    # A boolean of JSON is not a number, but Python's True equals 1.
    return any(isinstance(value, bool) == isinstance(other, bool) and value == other for other in values)


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input of a task: a collection to read, and the times of the read.

    Attributes:
        index: index among the inputs of the task, from 0.
        name: unique name within the task.
        source: name of the collection.
        position: position in the catalog.
        selector: selection of logical partitions.
        not_before: timestamp of the first document to process; None for no bound.
        not_after: timestamp from which documents are no longer processed; None for no bound.
        priority: priority; inputs with a higher priority are read first.
        read_delay: microseconds added to a document's timestamp before it may be processed.
        backfill: number that the author raises to read the source from its start again.
        feedback: true if the source lies on a cycle with the task, so that it is read one tick later.
        follows: true to continue with every relation that gets the name of the source; false to stop the task when the
            relation of the name changes.
    """

    index: int
    name: str
    source: str
    position: Position
    selector: SelectorSpec = field(default_factory=SelectorSpec)
    not_before: int | None = None
    not_after: int | None = None
    priority: int = 0
    read_delay: int = 0
    backfill: int = 0
    feedback: bool = False
    follows: bool = False

    @property
    def state_key(self) -> str:
        """Return the name of this input's progress, which changes with a raised `backfill`."""
        return f"{self.name}.v{self.backfill}" if self.backfill else self.name


_VERSIONED = re.compile(r"(.+)@[0-9]+")


def version_name(name: str, number: int) -> str:
    """Return the name of the collection with the documents of a former version, or of a shadow.

    >>> version_name("shop/large", 2)
    'shop/large@2'
    """
    return f"{name}@{number}"


def owner_of_version(name: str) -> str | None:
    """Return the collection of which a name is a former version or a shadow; None for other names.

    >>> owner_of_version("shop/large@2")
    'shop/large'
    """
    match = None if is_of_sql(name) else _VERSIONED.fullmatch(name)
    return match and match[1]


_QUARANTINE, _RETRIED = "@quarantine", "@retried/"

_SCHEMA = {
    "type": "object",
    "required": ["id", "input", "transform", "source", "key", "clock", "error", "document"],
    "properties": {
        "id": {"type": "string", "description": "Identifier of the entry."},
        "input": {"type": "string", "description": "The transform, with the number of its backfill."},
        "transform": {"type": "string"},
        "source": {"type": "string", "description": "Name of the source collection."},
        "key": {"type": "array", "description": "Key of the source document."},
        "clock": {"type": "string", "description": "Time of the source document."},
        "error": {"type": "string"},
        "document": {"type": "object", "description": "The source document."},
    },
}


def quarantine_name(task: str) -> str:
    """Return the name of the quarantine of a derivation.

    >>> quarantine_name("shop/orders")
    'shop/orders@quarantine'
    """
    return task + _QUARANTINE


def retried_name(task: str, state_key: str) -> str:
    """Return the name of the collection of retried documents of one of a derivation's inputs.

    >>> retried_name("shop/orders", "large.v2")
    'shop/orders@retried/large.v2'
    """
    return f"{task}{_RETRIED}{state_key}"


def task_of(name: str) -> str | None:
    """Return the derivation to which a quarantine belongs; None for other collections."""
    return name.removesuffix(_QUARANTINE) if name.endswith(_QUARANTINE) else None


def internal_patterns(task: str) -> tuple[str, str]:
    """Return the name of a derivation's quarantine, and the prefix of its collections of retried documents."""
    return quarantine_name(task), task + _RETRIED


@cache
def quarantine_spec(task: str) -> CollectionSpec:
    """Return the quarantine of a derivation as a collection, partitioned by input."""
    key = ("/id",)
    return CollectionSpec(
        name=quarantine_name(task),
        key=key,
        key_defaults=(None,),
        write_schema=_SCHEMA,
        read_schema=_SCHEMA,
        projections=project(infer(_SCHEMA), key, {"input": Declared("/input", partition=True)}),
        position=Position(quarantine_name(task)),
    )


def retried_specs(task: str, state_keys: Sequence[str], source: CollectionSpec) -> tuple[CollectionSpec, ...]:
    """Return the collections of retried documents that a transform reads besides its source.

    Args:
        task: name of the derivation.
        state_keys: present and former state keys of the transform.
        source: the source of the transform.
    """
    return tuple(replace(source, name=retried_name(task, key)) for key in state_keys)
