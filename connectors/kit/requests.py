"""Requests to a connector, its answers, and rows to store in an endpoint, as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TypeAlias

from derive.document.pointer import JSON
from derive.protocol.materialization import Constraint

Value: TypeAlias = str | int | float | bool | bytes | None
"""A value of a field; bytes are the JSON text of an object or an array."""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of one binding to store. All sequences and columns are parallel and not empty.

    Attributes:
        key_columns: for each field of the key, its values.
        value_columns: for each other field, its values.
        documents: whole documents as JSON; they may be empty if the binding does not materialize them.
        exists: whether the endpoint has a row with this key.
        deleted: whether to delete the row with this key; a missing row is ignored.
    """

    key_columns: Sequence[Sequence[Value]]
    value_columns: Sequence[Sequence[Value]]
    documents: Sequence[bytes]
    exists: Sequence[bool]
    deleted: Sequence[bool]

    def __len__(self) -> int:
        return len(self.exists)

    @property
    def keys(self) -> Sequence[tuple[Value, ...]]:
        """Return the keys by row."""
        return list(zip(*self.key_columns, strict=True))

    @property
    def values(self) -> Sequence[tuple[Value, ...]]:
        """Return the values of the other fields by row."""
        return list(zip(*self.value_columns, strict=True)) if self.value_columns else [()] * len(self)

    def rows(self, *, with_document: bool) -> Iterator[tuple[Value, ...]]:
        """Yield rows in the order of an INSERT: key, values and, if requested, the document."""
        documents = (self.documents,) if with_document else ()
        return zip(*self.key_columns, *self.value_columns, *documents, strict=True)

    def where(self, flags: Sequence[bool]) -> StoredRows | None:
        """Return the rows whose flag is set; None if no flag is set.

        Args:
            flags: flags parallel to the rows, such as `exists`.
        """
        count = sum(flags)
        if count in (0, len(self)):
            return self if count else None
        return StoredRows(
            [list(compress(column, flags)) for column in self.key_columns],
            [list(compress(column, flags)) for column in self.value_columns],
            list(compress(self.documents, flags)),
            list(compress(self.exists, flags)),
            list(compress(self.deleted, flags)),
        )


@dataclass(frozen=True, slots=True)
class ConnectorSpec:
    """The configuration schemas of a connector.

    Attributes:
        endpoint_schema: JSON Schema of an endpoint's configuration; secrets are marked with `secret: true`.
        resource_schema: JSON Schema of a binding's configuration.
        documentation_url: URL of its documentation.
        refills: whether the connector refills a binding that starts over beside its rows; see `Binding.generation`.
        is_local: whether endpoints are on the machine of the connector, such as a file; then a materialization does not
            move to another machine.
    """

    endpoint_schema: JSON
    resource_schema: JSON
    documentation_url: str
    refills: bool = False
    is_local: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """A location of a collection's documents, with the name of a field.

    Attributes:
        name: the field.
        pointer: JSON pointer of the location.
        types: possible JSON types of a value, sorted; empty if unknown.
        must_exist: whether every document has the location.
        is_key: whether the location is a component of the collection's key.
        is_partition: whether the location is a logical partition.
        is_user_provided: whether the author of the catalog has named the field.
        format: format of a string, such as `date-time`; empty if unknown.
        content_type: media type of a string; empty if unknown.
        is_base64: whether a string is bytes in base64.
        max_length: maximum length of a string, in characters; 0 if unknown.
        title: title in the schema, for people.
        description: description in the schema, for people.
    """

    name: str
    pointer: str
    types: tuple[str, ...] = ()
    must_exist: bool = False
    is_key: bool = False
    is_partition: bool = False
    is_user_provided: bool = False
    format: str = ""
    content_type: str = ""
    is_base64: bool = False
    max_length: int = 0
    title: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class SourceCollection:
    """A collection that is materialized.

    Attributes:
        name: name, for example `acmeBank/balances`.
        key: JSON pointers of its key.
        fields: its projections, by name.
        schema_json: JSON Schema of its documents, as text.
    """

    name: str
    key: tuple[str, ...]
    fields: Mapping[str, Field]
    schema_json: str = field(default="{}", repr=False)


@dataclass(frozen=True, slots=True)
class ProposedBinding:
    """A binding before validation.

    Attributes:
        resource: configuration that is valid under the connector's resource schema.
        collection: collection of the binding.
        field_config: the author's configuration of fields, by name.
    """

    resource: JSON
    collection: SourceCollection
    field_config: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Validation:
    """A request for the endpoint's constraints on bindings.

    Attributes:
        materialization: name of the materialization.
        config: the endpoint's configuration, valid under the connector's endpoint schema. It may contain secrets.
        bindings: proposed bindings.
    """

    materialization: str
    config: JSON = field(repr=False)
    bindings: tuple[ProposedBinding, ...]


@dataclass(frozen=True, slots=True)
class ValidatedBinding:
    """The endpoint's constraints on a binding.

    Attributes:
        resource_path: place in the endpoint, such as the name of a table; unique in a materialization.
        constraints: constraints by field, for every field of the collection.
        delta_updates: whether documents are stored without loading previous ones.
        most_fields: maximum number of fields, key and document included; 0 if unlimited.
    """

    resource_path: tuple[str, ...]
    constraints: Mapping[str, Constraint]
    delta_updates: bool = False
    most_fields: int = 0


@dataclass(frozen=True, slots=True)
class Binding:
    """A collection, with the place and the fields of its materialization.

    Attributes:
        resource: configuration of the binding.
        resource_path: place in the endpoint.
        collection: the materialized collection.
        keys: fields of the key, in the order of loaded and stored keys.
        values: other fields, in the order of stored values.
        document: name of the field that holds whole documents, or None.
        field_config: the author's configuration of fields, by name.
        delta_updates: whether documents are stored without loading previous ones.
        generation: name of the history of the rows: `FIRST` until the binding starts over, then a unique name; empty
            with delta updates, and for a connector that cannot refill. While the endpoint has rows of another
            generation, readers see these rows, and sessions store new rows beside them. This ends when the runtime
            declares the refill complete. Two bindings may have one resource: a binding with the generation of the
            visible rows, and after it a binding with the generation of their refill.
    """

    resource: JSON
    resource_path: tuple[str, ...]
    collection: SourceCollection
    keys: tuple[Field, ...]
    values: tuple[Field, ...]
    document: str | None = None
    field_config: Mapping[str, JSON] = field(default_factory=dict)
    delta_updates: bool = False
    generation: str = ""


@dataclass(frozen=True, slots=True)
class Materialization:
    """A materialization as its connector sees it: the endpoint, and the collections that the endpoint keeps.

    Attributes:
        name: name, for example `acmeBank/warehouse`.
        config: the endpoint's configuration. It may contain secrets.
        bindings: one for each collection, with the table (or other resource) that keeps its rows.
    """

    name: str
    config: JSON = field(repr=False)
    bindings: tuple[Binding, ...]


@dataclass(frozen=True, slots=True)
class Application:
    """A request to prepare an endpoint.

    Attributes:
        materialization: the materialization.
        version: version of the materialization, which changes with every edit.
        dry_run: whether to only plan the changes.
        begun: indexes of bindings with stored rows, according to the runtime's state. If the endpoint has a checkpoint,
            the tables of these bindings must exist, because lost rows would not be stored again.
        completed: identities of refills that are complete: they replace rows in one transaction, which fences
            all sessions. A refill that has replaced the rows already stays as it is.
        compare: largest number of example rows of each difference between visible rows and refills, in a dry run; 0 to
            compare nothing.
    """

    materialization: Materialization
    version: str
    dry_run: bool = False
    begun: frozenset[int] = frozenset()
    completed: frozenset[str] = frozenset()
    compare: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """The rows of a binding that is being refilled, compared with the visible rows.

    Attributes:
        binding: index of the binding.
        deleted: number of rows that the refill will delete.
        inserted: number of rows that the refill will insert.
        updated: number of rows that the refill will update.
        rows: examples as JSON objects: `key` has the values of the key, `before` and `after` the columns that differ;
            null for a missing row.
    """

    binding: int
    deleted: int
    inserted: int
    updated: int
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Applied:
    """An endpoint that is ready, or would be.

    Attributes:
        description: text about the actions that were or would be done; empty if there are none.
        refilling: indices of bindings that are being refilled: sessions store new rows beside the present rows.
        contents: for each binding, the identity of the rows that sessions load and store; empty if the binding has
            never started over. Each new refill has a new identity, which its rows keep after they have replaced the
            old rows.
        differences: differences of the bindings that are being refilled, if the request compares them.
    """

    description: str
    refilling: frozenset[int] = frozenset()
    contents: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class Opening:
    """A request to open a session.

    Attributes:
        materialization: the materialization.
        version: the applied version.
        key_begin: least hash of the session's keys.
        key_end: greatest hash of the session's keys, inclusive.
        driver_checkpoint: the previous session's checkpoint for the runtime, with merge patches applied, as JSON; empty
            without one. After a crash, it may be the checkpoint of the commit before the last commit.
    """

    materialization: Materialization
    version: str
    key_begin: int = 0
    key_end: int = 0xFFFF_FFFF
    driver_checkpoint: bytes = b""


@dataclass(frozen=True, slots=True)
class DriverCheckpoint:
    """A checkpoint that the runtime stores for a session, and passes to the next session.

    Attributes:
        json: a JSON value.
        merge_patch: whether the value is a merge patch (RFC 7396) of the stored checkpoint, instead of a replacement.
    """

    json: bytes
    merge_patch: bool = False
