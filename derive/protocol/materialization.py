"""Materializations: collections whose reduced documents are kept in another system, its endpoint, and constraints.

A configuration contains passwords. The author writes references to them, `${env:NAME}` and `${file:PATH}`. References
are resolved when a connector is started, so a spec that is shown, compared or stored has no resolved values. Because an
author may still write a password in clear, the repr of a configuration is `***`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TypeAlias

from derive.document.pointer import JSON
from derive.errors import TaskError
from derive.position import Position
from derive.protocol.collection import CollectionSpec, InputSpec
from derive.protocol.secrets import HIDDEN, escaped, reveal, secret_texts

ENCRYPTED = "sops"
"""Property of a configuration that was encrypted by the tool of this name."""


@dataclass(frozen=True, slots=True, repr=False)
class EndpointConfig:
    """The configuration of a connector.

    Attributes:
        written: the configuration as written, with references to secrets.
        url: URL of its file, the base of relative file names.
        position: position in the file.
        positions: position of each of its values, by JSON pointer.
        hidden: secret texts in addition to the secrets that `written` shows.
    """

    written: JSON
    url: str
    position: Position
    positions: Mapping[str, Position] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return HIDDEN

    def reveal(self) -> JSON:
        """Return the configuration with resolved references, for the connector only.

        Raises:
            TaskError: a variable is not set, a file cannot be read, or the configuration is encrypted; the error has
                the position.
        """
        if isinstance(self.written, dict) and ENCRYPTED in self.written:
            hint = "decrypt it to a file that is not shared, or refer to its secrets by '${env:NAME}' or '${file:PATH}'"
            raise TaskError(
                "the configuration is encrypted by sops, which is not supported", position=self.position, hint=hint
            )
        return reveal(self.written, self.url, self.positions, self.position)

    def revealed(self) -> EndpointConfig:
        """Return this configuration without references, for a process that has neither the variables nor the files.

        Raises:
            TaskError: as for `reveal`.
        """
        return replace(self, written=escaped(self.reveal()), hidden=self.secrets())

    def secrets(self) -> frozenset[str]:
        """Return texts to hide in a connector's messages: values of references, and values that look like secrets.

        References that cannot be resolved are skipped.
        """
        return self.hidden | secret_texts(self.written, self.url)


@dataclass(frozen=True, slots=True)
class ConnectorEndpoint:
    """A connector by its image.

    Attributes:
        image: image as written, such as `ghcr.io/someone/materialize-postgres:v1`.
        config: its configuration.
        position: position of the image.
    """

    image: str
    config: EndpointConfig
    position: Position

    @property
    def connector(self) -> str:
        """Return the image's name without registry, tag and digest: the name of an installed connector."""
        return connector_of(self.image)


def connector_of(image: str) -> str:
    """Return the name of the installed connector of an image.

    >>> connector_of("ghcr.io/someone/materialize-postgres:v1")
    'materialize-postgres'
    """
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


@dataclass(frozen=True, slots=True)
class LocalEndpoint:
    """A connector that is a local program, which prints its address when it is ready.

    Attributes:
        command: the program and its arguments.
        config: its configuration.
        position: position of the command.
        env: additional environment variables: an object of strings, which may be secrets.
        folder: working folder, which is the folder of the catalog's file.
    """

    command: tuple[str, ...]
    config: EndpointConfig
    position: Position
    env: EndpointConfig
    folder: str


@dataclass(frozen=True, slots=True)
class AddressEndpoint:
    """A connector that is already running.

    Attributes:
        address: `host:port`.
        config: its configuration.
        position: position of the address.
    """

    address: str
    config: EndpointConfig
    position: Position


EndpointSpec: TypeAlias = ConnectorEndpoint | LocalEndpoint | AddressEndpoint
"""The endpoint of a materialization."""


class ConstraintType(IntEnum):
    """Kind of a constraint, with the numbers of the protocol."""

    FIELD_REQUIRED = 0
    """The field must be materialized."""
    LOCATION_REQUIRED = 1
    """Some field of the same location must be materialized."""
    LOCATION_RECOMMENDED = 2
    """Some field of the same location should be materialized, unless the author excludes it."""
    FIELD_OPTIONAL = 3
    """The field is materialized only if the author includes it."""
    FIELD_FORBIDDEN = 4
    """The field must not be materialized."""
    UNSATISFIABLE = 5
    """The field must be materialized, but cannot be."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """The constraint on one field.

    Attributes:
        type: kind of the constraint.
        reason: explanation, for people.
    """

    type: ConstraintType
    reason: str


FIRST = "first"
"""The generation of a binding that has never started over, in messages to connectors."""


@dataclass(frozen=True, slots=True)
class FieldsSpec:
    """The fields that a person selects for a binding.

    Attributes:
        recommended: true to add the fields that the connector recommends.
        depth: greatest depth of recommended fields, in levels below the document; None for no limit.
        include: required fields, each with its settings for the connector.
        exclude: forbidden fields.
        key: selected fields of the collection's key, in its order; empty for the default.
        position: position of the selection, or of the binding without one.
        positions: position of each named field, by name.
    """

    position: Position
    recommended: bool = True
    depth: int | None = None
    include: Mapping[str, JSON] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    positions: Mapping[str, Position] = field(default_factory=dict)

    def position_of(self, name: str) -> Position:
        """Return the position of a named field; the position of the selection for other fields."""
        return self.positions.get(name, self.position)


@dataclass(frozen=True, slots=True)
class BindingSpec:
    """One collection with its place in the endpoint.

    Attributes:
        input: the input.
        collection: the collection.
        resource: resource of the endpoint, such as a table, in the connector's format.
        fields: selected fields.
        position: position of the binding.
        resource_positions: position of each value of `resource`, by JSON pointer.
        is_shadow: whether the binding fills a table beside the table of a live binding with the same resource, until
            a swap.
    """

    input: InputSpec
    collection: CollectionSpec
    resource: JSON
    fields: FieldsSpec
    position: Position
    resource_positions: Mapping[str, Position] = field(default_factory=dict)
    is_shadow: bool = False

    @property
    def label(self) -> str:
        """Return the name of the resource, without the name of the source."""
        return self.name.removeprefix(f"{self.collection.name} -> ")

    @property
    def name(self) -> str:
        """Return the name: unique within the materialization, and constant while source and resource are unchanged."""
        return self.input.name


@dataclass(frozen=True, slots=True)
class MaterializationSpec:
    """A materialization: a task that writes the collections of its bindings to an endpoint.

    Attributes:
        name: unique name among all tasks.
        endpoint: the endpoint.
        bindings: enabled bindings, in catalog order; after them, shadows of some of them.
        sources: collections that the bindings read, by name.
        tick: microseconds of `shards.maxTxnDuration`.
        position: position in the catalog.
        disabled: `shards.disable` is set.
    """

    name: str
    endpoint: EndpointSpec
    bindings: tuple[BindingSpec, ...]
    sources: Mapping[str, CollectionSpec]
    tick: int
    position: Position
    disabled: bool = False

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """Return the inputs, in catalog order."""
        return tuple(binding.input for binding in self.bindings)

    @property
    def shadows(self) -> frozenset[str]:
        """Return the state keys of the bindings that are shadows."""
        return frozenset(binding.input.state_key for binding in self.bindings if binding.is_shadow)

    @property
    def live(self) -> MaterializationSpec:
        """Return the materialization without shadows, which follow all other bindings."""
        return replace(self, bindings=tuple(binding for binding in self.bindings if not binding.is_shadow))
