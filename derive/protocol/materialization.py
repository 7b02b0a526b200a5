"""Materializations: collections whose reduced documents are kept in another system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from derive.position import Position
from derive.protocol.collection import JSON, CollectionSpec, InputSpec
from derive.protocol.endpoint import EndpointSpec


@dataclass(frozen=True, slots=True)
class FieldsSpec:
    """Which fields a person wants of a binding.

    Attributes:
        recommended: whether the fields that the connector recommends are taken, too.
        depth: how many levels deep these may lie below the document; None for any.
        include: fields that must be there, each with what the connector is told of it.
        exclude: fields that must not be there.
        key: fields of the collection's key, in its order, if they are chosen; else empty.
        position: where the fields are written, or the binding, if they are not.
        positions: where each field is named, by its name.
    """

    position: Position
    recommended: bool = True
    depth: int | None = None
    include: Mapping[str, JSON] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    positions: Mapping[str, Position] = field(default_factory=dict)

    def position_of(self, name: str) -> Position:
        """Where a field is named; where fields are written, if it is not."""
        return self.positions.get(name, self.position)


@dataclass(frozen=True, slots=True)
class BindingSpec:
    """One collection, and where in the endpoint it goes.

    Attributes:
        input: what is read, and when.
        collection: whose documents they are.
        resource: what of the endpoint is meant, such as a table; the connector knows its form.
        fields: which are wanted.
        position: where the binding is written.
        resource_positions: where each value of `resource` is written, by JSON pointer.
    """

    input: InputSpec
    collection: CollectionSpec
    resource: JSON
    fields: FieldsSpec
    position: Position
    resource_positions: Mapping[str, Position] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What its resource is called: the name without that of the source."""
        return self.name.removeprefix(f"{self.collection.name} -> ")

    @property
    def name(self) -> str:
        """Unique within the materialization, and the same as long as source and resource are."""
        return self.input.name


@dataclass(frozen=True, slots=True)
class MaterializationSpec:
    """A materialization: a task that keeps what its bindings say in an endpoint.

    Attributes:
        name: unique among all tasks.
        endpoint: what it talks to.
        bindings: in catalog order, without those that are disabled.
        sources: each collection that the bindings read, by name.
        tick: microseconds of `shards.maxTxnDuration`.
        position: where it is written.
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
        """What it reads, in catalog order."""
        return tuple(binding.input for binding in self.bindings)
