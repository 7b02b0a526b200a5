"""What a connector is asked with, and what it answers with, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from derive.protocol.constraint import Constraint
from derive.protocol.specs import JSON


@dataclass(frozen=True, slots=True)
class ConnectorSpec:
    """What a connector can be configured with.

    Attributes:
        endpoint_schema: JSON Schema of an endpoint's configuration; secrets are marked with `secret: true`.
        resource_schema: JSON Schema of a binding's.
        documentation_url: where it is described.
    """

    endpoint_schema: JSON
    resource_schema: JSON
    documentation_url: str


@dataclass(frozen=True, slots=True)
class Field:
    """A location of a collection's documents, under the name of a field.

    Attributes:
        name: the field.
        pointer: JSON pointer of the location.
        types: types of JSON that a value may have, sorted; empty if nothing is known.
        must_exist: whether every document has it.
        is_key: whether it is a component of the collection's key.
        is_partition: whether it is a logical partition.
        is_user_provided: whether the author of the catalog has named it.
        format: that of a string, such as `date-time`; empty if nothing is said.
        content_type: media type of a string; empty if nothing is said.
        is_base64: whether a string is bytes in base64.
        max_length: the longest that a string may be, in characters; 0 if nothing is said.
        title: from the schema, for people.
        description: from the schema, for people.
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
        name: for example `acmeBank/balances`.
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
    """A binding of which nothing is decided.

    Attributes:
        resource: its configuration, which fulfils the connector's resource schema.
        collection: what it is about.
        field_config: what the author says about fields, by name.
    """

    resource: JSON
    collection: SourceCollection
    field_config: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Validation:
    """The question of what an endpoint asks of bindings.

    Attributes:
        materialization: its name.
        config: the endpoint's configuration, which fulfils the connector's endpoint schema. It may hold secrets.
        bindings: what is proposed.
    """

    materialization: str
    config: JSON = field(repr=False)
    bindings: tuple[ProposedBinding, ...]


@dataclass(frozen=True, slots=True)
class ValidatedBinding:
    """What an endpoint asks of a binding.

    Attributes:
        resource_path: where in the endpoint it goes, such as the name of a table; unique among a materialization's.
        constraints: by field; of every field of the collection.
        delta_updates: whether documents are stored without those of before being loaded.
        most_fields: how many fields there is room for, key and document included; 0 if there is no bound.
    """

    resource_path: tuple[str, ...]
    constraints: Mapping[str, Constraint]
    delta_updates: bool = False
    most_fields: int = 0


@dataclass(frozen=True, slots=True)
class Binding:
    """A collection, and where and with which fields it is materialized.

    Attributes:
        resource: its configuration.
        resource_path: where in the endpoint it goes.
        collection: what is materialized.
        keys: fields of the key, in the order of keys that are loaded and stored.
        values: the other fields, in the order of values that are stored.
        document: name of the field that holds whole documents, or None.
        field_config: what the author says about fields, by name.
        delta_updates: whether documents are stored without those of before being loaded.
    """

    resource: JSON
    resource_path: tuple[str, ...]
    collection: SourceCollection
    keys: tuple[Field, ...]
    values: tuple[Field, ...]
    document: str | None = None
    field_config: Mapping[str, JSON] = field(default_factory=dict)
    delta_updates: bool = False


@dataclass(frozen=True, slots=True)
class Materialization:
    """Collections that are kept up to date in an endpoint.

    Attributes:
        name: for example `acmeBank/warehouse`.
        config: the endpoint's configuration. It may hold secrets.
        bindings: what is materialized.
    """

    name: str
    config: JSON = field(repr=False)
    bindings: tuple[Binding, ...]


@dataclass(frozen=True, slots=True)
class Application:
    """The wish that an endpoint be made ready.

    Attributes:
        materialization: for what.
        version: another for every change of the materialization.
        dry_run: whether to say only what would be done.
        begun: indices of bindings of which something was stored, as the runtime knows: where the endpoint has a
            checkpoint, what they go to has to be there, since what it held would not be stored again.
    """

    materialization: Materialization
    version: str
    dry_run: bool = False
    begun: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Opening:
    """The beginning of a session.

    Attributes:
        materialization: what it is about.
        version: that which was applied.
        key_begin: the least hash of the keys that are its own.
        key_end: the greatest; it is one of them.
        driver_checkpoint: what the session before has given the runtime to keep, with merge patches applied, as JSON;
            empty if it has given nothing. After a crash it may be that of the commit before the last one.
    """

    materialization: Materialization
    version: str
    key_begin: int = 0
    key_end: int = 0xFFFF_FFFF
    driver_checkpoint: bytes = b""


@dataclass(frozen=True, slots=True)
class DriverCheckpoint:
    """What the runtime shall keep for a session, and give back to the next one.

    Attributes:
        json: a JSON value.
        merge_patch: whether it is a merge patch (RFC 7396) over what is kept, and does not stand for itself.
    """

    json: bytes
    merge_patch: bool = False
