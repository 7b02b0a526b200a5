"""Conversion of a binding to the table that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from connectors.kit.requests import Binding, Field, SourceCollection
from connectors.materialize_sql.column import Column, Table
from connectors.materialize_sql.dialect import Dialect
from connectors.materialize_sql.kind import Kind, key_kind_of, kind_of
from derive.document.exact import parse_exact
from derive.document.pointer import parse_pointer
from derive.errors import EndpointError
from derive.schema.infer import infer
from derive.schema.shape import Shape, locate

TYPE = "type"
"""The option of a field that names the type of its column."""

_TYPES = {"text": Kind.TEXT, "json": Kind.JSON}


def table_of(binding: Binding, dialect: Dialect, path: tuple[str, ...]) -> Table:
    """Return the table that a binding needs.

    Args:
        binding: binding with its fields selected.
        dialect: dialect of the database.
        path: path of the table.

    Raises:
        EndpointError: a field's options are invalid, or two fields have the same column.
    """
    collection = binding.collection
    columns = [column_of(field, collection, dialect, is_key=True) for field in binding.keys]
    for field in binding.values:
        column = column_of(field, collection, dialect, config=binding.field_config.get(field.name))
        if column is None:
            raise EndpointError(
                f"field '{field.name}' of '{collection.name}' can only be null", hint="exclude the field"
            )
        columns.append(column)
    document = None if binding.document is None else document_column(binding.document, collection, dialect)
    present = tuple(column for column in (*columns, document) if column is not None)
    _refuse_collisions(present, dialect)
    return Table(
        path, present, binding.delta_updates, document.name if document else None, f"The collection {collection.name}."
    )


def column_of(
    field: Field, collection: SourceCollection, dialect: Dialect, *, is_key: bool = False, config: Any = None
) -> Column | None:
    """Return the column of a field; None if its values can only be null.

    Args:
        field: field of the collection.
        collection: the collection, whose schema may have bounds of numbers.
        dialect: dialect of the database.
        is_key: whether the field is a component of the key.
        config: the author's options of the field.

    Raises:
        EndpointError: the options are invalid.
    """
    minimum, maximum = _bounds(collection.schema_json, field.pointer)
    kind: Kind | None
    if is_key:
        kind = key_kind_of(field.types, must_exist=field.must_exist, minimum=minimum, maximum=maximum)
    else:
        kind = kind_of(field.types or ("object", "string"), field.format, minimum=minimum, maximum=maximum)
        kind = _chosen(field, kind, config)
    if kind is None:
        return None
    not_null = is_key or (field.must_exist and "null" not in field.types and bool(field.types))
    return Column(
        field=field.name,
        name=dialect.naming.column(field.name),
        kind=kind,
        type=dialect.type_of(kind, is_key=is_key),
        is_key=is_key,
        not_null=not_null,
        comment=_comment(field, collection.name),
    )


def document_column(name: str, collection: SourceCollection, dialect: Dialect) -> Column:
    """Return the column of whole documents."""
    return Column(
        field=name,
        name=dialect.naming.column(name),
        kind=Kind.JSON,
        type=dialect.types[Kind.JSON],
        not_null=True,
        comment=f"Whole documents of {collection.name}.",
    )


def collisions(columns: Mapping[str, Column], dialect: Dialect) -> dict[str, list[str]]:
    """Return the fields whose columns have the same name in the database, by that name."""
    names: dict[str, list[str]] = {}
    for field, column in columns.items():
        names.setdefault(dialect.naming.fold(column.name), []).append(field)
    return {name: fields for name, fields in names.items() if len(fields) > 1}


def _refuse_collisions(columns: tuple[Column, ...], dialect: Dialect) -> None:
    for fields in collisions({column.field: column for column in columns}, dialect).values():
        names = " and ".join(f"'{name}'" for name in fields)
        hint = "exclude one of them, or give it another name by a projection"
        raise EndpointError(f"fields {names} would have the same column in {dialect.title}", hint=hint)


def _chosen(field: Field, kind: Kind | None, config: Any) -> Kind | None:
    if not config:
        return kind
    chosen = _TYPES.get(config.get(TYPE, "")) if isinstance(config, dict) else None
    if chosen is None or set(config) != {TYPE}:
        raise EndpointError(
            f"field '{field.name}' has options {config}", hint="what can be said is {type: text} and {type: json}"
        )
    if chosen is Kind.TEXT and not set(field.types) <= {"string", "null"}:
        raise EndpointError(
            f"field '{field.name}' may be other than a string", hint="{type: json} is for values of any type"
        )
    return chosen


def _comment(field: Field, collection: str) -> str:
    said = [text.strip() for text in (field.title, field.description) if text.strip()]
    return ": ".join([f"{field.pointer or 'The document'} of {collection}", *said]).replace("\0", "")


def _bounds(schema_json: str, pointer: str) -> tuple[float | None, float | None]:
    located, _ = locate(_shape(schema_json), parse_pointer(pointer))
    return located.minimum, located.maximum


@lru_cache(maxsize=64)
def _shape(schema_json: str) -> Shape:
    return infer(parse_exact(schema_json.encode() or b"{}"))
