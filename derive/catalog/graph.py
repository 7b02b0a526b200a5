"""The graph of a catalog: the order of derivations, cycles, and the data flow between collections and tasks.

The graph is plain data: a picture is a function of the graph, and equal catalogs have equal graphs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from derive.document.clock import format_duration, format_rfc3339
from derive.protocol.specs import (
    AddressEndpoint,
    CatalogSpec,
    CollectionSpec,
    ConnectorEndpoint,
    DerivationSpec,
    InputSpec,
    MaterializationSpec,
    SelectorSpec,
    ShuffleSpec,
    TestSpec,
    TransformSpec,
)


def upstream(names: Iterable[str], reads: Mapping[str, Iterable[str]]) -> frozenset[str]:
    """Return the derivations of collections, and all derivations upstream of these.

    Args:
        names: names of the collections.
        reads: names of the collections that each derivation reads, by its name.
    """
    reached: set[str] = set()
    pending = [*names]
    while pending:
        name = pending.pop()
        if name in reads and name not in reached:
            reached.add(name)
            pending += reads[name]
    return frozenset(reached)


def tasks_of(catalog: CatalogSpec, test: TestSpec) -> list[str]:
    """Return the derivations upstream of the collections that a test verifies; all derivations if it verifies none."""
    return tasks_leading_to(catalog, test.verified) if test.verified else list(catalog.derivations)


def tasks_leading_to(catalog: CatalogSpec, collections: Collection[str]) -> list[str]:
    """Return the derivations of some collections, and those upstream of them."""
    reads = {name: derivation.sources for name, derivation in catalog.derivations.items()}
    return sorted(upstream(collections, reads))


def cycles(reads: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Return groups of names that read one another, sources before readers.

    Source: Tarjan, "Depth-first search and linear graph algorithms" (1972), without recursion.

    >>> cycles({"a": ["b", "x"], "b": ["a"], "c": ["a"]})
    (('a', 'b'), ('c',))

    Args:
        reads: names that each name reads.
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    stacked: set[str] = set()
    groups: list[tuple[str, ...]] = []
    order = {name: index for index, name in enumerate(reads)}
    work: list[tuple[str, Iterator[str]]] = []

    def enter(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        stacked.add(name)
        work.append((name, iter(reads[name])))

    for root in reads:
        if root in index:
            continue
        enter(root)
        while work:
            name, sources = work[-1]
            following = next((source for source in sources if source in reads), None)
            if following is not None:
                if following not in index:
                    enter(following)
                elif following in stacked:
                    low[name] = min(low[name], index[following])
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[name])
            if low[name] == index[name]:
                start = stack.index(name)
                group = stack[start:]
                del stack[start:]
                stacked.difference_update(group)
                groups.append(tuple(sorted(group, key=order.__getitem__)))
    return tuple(groups)


Kind: TypeAlias = Literal["collection", "derivation", "capture", "materialization"]
"""Kind of a node: a `derivation` is a derived collection, and a `collection` is any other collection."""


@dataclass(frozen=True, slots=True)
class Node:
    """A collection, or a task that reads or writes collections.

    Attributes:
        name: unique name in the graph.
        kind: kind of the node.
        notes: short properties, the most important first, such as `key /id`.
    """

    name: str
    kind: Kind
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow of documents from one node to another.

    Attributes:
        source: name of the node that is read.
        target: name of the node that reads.
        label: name of the transform or of the binding.
        notes: properties of the read, the most important first, such as `delay 24h`.
        feedback: true if source and target lie on a cycle, so that the read is one tick later.
    """

    source: str
    target: str
    label: str
    notes: tuple[str, ...] = ()
    feedback: bool = False


@dataclass(frozen=True, slots=True)
class FlowGraph:
    """A data flow.

    Attributes:
        nodes: nodes, each before its readers except within a cycle.
        flows: flows grouped by target in the order of `nodes`, and in the catalog's order for each target.
    """

    nodes: tuple[Node, ...]
    flows: tuple[Flow, ...]


def flow_graph(catalog: CatalogSpec) -> FlowGraph:
    """Return the data flow of a catalog: ingested collections by name, then tasks in the catalog's order."""
    ingested = [catalog.collections[name] for name in sorted(set(catalog.collections) - set(catalog.derivations))]
    nodes = [Node(collection.name, "collection", _collection_notes(collection)) for collection in ingested]
    nodes += [Node(spec.name, "derivation", _derivation_notes(spec)) for spec in catalog.derivations.values()]
    nodes += [Node(spec.name, "materialization", _endpoint_notes(spec)) for spec in catalog.materializations.values()]
    flows = [
        Flow(
            transform.input.source,
            derivation.name,
            transform.name,
            _transform_notes(transform),
            transform.input.feedback,
        )
        for derivation in catalog.derivations.values()
        for transform in derivation.transforms
    ]
    flows += [
        Flow(binding.input.source, spec.name, binding.label, tuple(_input_notes(binding.input)))
        for spec in catalog.materializations.values()
        for binding in spec.bindings
    ]
    return FlowGraph(tuple(nodes), tuple(flows))


def _collection_notes(spec: CollectionSpec) -> tuple[str, ...]:
    notes = [f"key {' '.join(pointer or '(root)' for pointer in spec.key)}"]
    if spec.partitions:
        notes.append(f"partitioned by {', '.join(partition.field for partition in spec.partitions)}")
    return tuple(notes)


def _derivation_notes(spec: DerivationSpec) -> tuple[str, ...]:
    disabled = ("disabled",) if spec.disabled else ()
    return (spec.connector, *_collection_notes(spec.collection), *disabled)


def _endpoint_notes(spec: MaterializationSpec) -> tuple[str, ...]:
    endpoint = spec.endpoint
    if isinstance(endpoint, ConnectorEndpoint):
        name = endpoint.connector
    else:
        name = endpoint.address if isinstance(endpoint, AddressEndpoint) else endpoint.command[0]
    return (name, "disabled") if spec.disabled else (name,)


def _transform_notes(transform: TransformSpec) -> tuple[str, ...]:
    return (f"shuffle {_shuffle(transform.shuffle)}", *_input_notes(transform.input))


def _input_notes(spec: InputSpec) -> list[str]:
    notes = []
    if spec.read_delay:
        notes.append(f"delay {format_duration(spec.read_delay)}")
    if spec.priority:
        notes.append(f"priority {spec.priority}")
    notes += _selector_notes(spec.selector)
    if spec.not_before is not None:
        notes.append(f"not before {_time(spec.not_before)}")
    if spec.not_after is not None:
        notes.append(f"not after {_time(spec.not_after)}")
    if spec.backfill:
        notes.append(f"backfill {spec.backfill}")
    return notes


def _time(clock: int) -> str:
    return format_rfc3339(clock).replace(".000000Z", "Z")


def _shuffle(spec: ShuffleSpec) -> str:
    return " ".join(spec.key) if spec.kind == "key" else spec.kind


def _selector_notes(spec: SelectorSpec) -> list[str]:
    chosen = (("only", spec.include), ("without", spec.exclude))
    return [
        f"{word} {field} {' or '.join(_value(value) for value in values)}"
        for word, fields in chosen
        for field, values in fields.items()
        if values
    ]


def _value(value: object) -> str:
    return value if isinstance(value, str) and value.isalnum() else json.dumps(value, ensure_ascii=False)
