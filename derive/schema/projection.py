"""Projections: the fields of a collection, declared, of the key, or inferred."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from derive.document.pointer import JSON, escape, parse_pointer
from derive.schema.shape import Exists, Shape, locate

DOCUMENT = "flow_document"
PUBLISHED_AT = "flow_published_at"
UUID_POINTER = "/_meta/uuid"


@dataclass(frozen=True, slots=True)
class ProjectionSpec:
    """A field: a name for one location of a collection's documents.

    Attributes:
        field: name, such as `object/foo`.
        pointer: JSON pointer of the location, such as `/object/foo`.
        types: JSON types that the read schema allows there, of `array boolean fractional integer null object string`.
        exists: existence of the location in valid documents.
        default: the schema's default as a one-element tuple; empty for none.
        format: the `format` keyword of a string.
        content_encoding: the `contentEncoding` keyword of a string.
        explicit: true if the catalog's author declared it.
        is_partition: true for a logical partition of the collection.
        is_key: true for a location of the collection's key.
        title: the schema's title.
        description: the schema's description.
        content_type: the `contentMediaType` of a string.
        max_length: greatest number of characters of a string; None if unbounded.
    """

    field: str
    pointer: str
    types: frozenset[str]
    exists: Exists = "may"
    default: tuple[JSON, ...] = ()
    format: str | None = None
    content_encoding: str | None = None
    explicit: bool = False
    is_partition: bool = False
    is_key: bool = False
    title: str | None = None
    description: str | None = None
    content_type: str | None = None
    max_length: int | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    """A projection as declared by the author."""

    pointer: str
    partition: bool


def project(shape: Shape, key: Sequence[str], declared: Mapping[str, Declared]) -> tuple[ProjectionSpec, ...]:
    """Return all projections of a collection, sorted by field.

    The first definition of a field counts, in this order: declared, `flow_document` and `flow_published_at`, key,
    inferred.
    """
    projections: dict[str, ProjectionSpec] = {}
    for field, projection in declared.items():
        projections[field] = _projection(
            shape, field, projection.pointer, key, explicit=True, partition=projection.partition
        )
    if not any(projection.pointer == "" for projection in declared.values()):
        projections.setdefault(DOCUMENT, _projection(shape, DOCUMENT, "", key))
    if PUBLISHED_AT not in projections:
        projections[PUBLISHED_AT] = ProjectionSpec(
            field=PUBLISHED_AT,
            pointer=UUID_POINTER,
            types=frozenset({"string"}),
            exists="must",
            format="date-time",
            content_encoding="uuid",
            title="Flow Publication Time",
        )
    for pointer in (*key, *_locations(shape)):
        projections.setdefault(pointer[1:], _projection(shape, pointer[1:], pointer, key))
    return tuple(projections[field] for field in sorted(projections))


def _projection(
    shape: Shape, field: str, pointer: str, key: Sequence[str], *, explicit: bool = False, partition: bool = False
) -> ProjectionSpec:
    located, exists = locate(shape, parse_pointer(pointer))
    return ProjectionSpec(
        field=field,
        pointer=pointer,
        types=located.types,
        exists=exists,
        default=located.default,
        format=located.format,
        content_encoding=located.content_encoding,
        explicit=explicit,
        is_partition=partition,
        is_key=pointer in key,
        title=located.title,
        description=located.description,
        content_type=located.content_type,
        max_length=located.max_length,
    )


def _locations(shape: Shape, pointer: str = "") -> Iterator[str]:
    """Yield the pointers of all locations that the schema names, parents before children."""
    children = []
    if "object" in shape.types:
        children += [(escape(name), member) for name, member in shape.properties.items() if name]
    if "array" in shape.types:
        children += [(str(index), item) for index, item in enumerate(shape.prefix)]
    for token, child in children:
        if not pointer and token == DOCUMENT:
            continue
        yield f"{pointer}/{token}"
        yield from _locations(child, f"{pointer}/{token}")
