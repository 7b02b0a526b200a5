"""Materializations: collections whose reduced documents are kept in another system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from derive.position import Position
from derive.protocol.collection import JSON, CollectionSpec, InputSpec
from derive.protocol.endpoint import EndpointSpec

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
    """

    input: InputSpec
    collection: CollectionSpec
    resource: JSON
    fields: FieldsSpec
    position: Position
    resource_positions: Mapping[str, Position] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Return the name of its resource: the name without that of the source."""
        return self.name.removeprefix(f"{self.collection.name} -> ")

    @property
    def name(self) -> str:
        """Return the name, unique within the materialization and constant while source and resource are."""
        return self.input.name


@dataclass(frozen=True, slots=True)
class MaterializationSpec:
    """A materialization: a task that writes the collections of its bindings to an endpoint.

    Attributes:
        name: unique name among all tasks.
        endpoint: the endpoint.
        bindings: enabled bindings, in catalog order.
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
