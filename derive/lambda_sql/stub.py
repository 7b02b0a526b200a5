"""Stubs: initial contents of SQL files that a catalog names and that do not exist yet.

A stub passes `flowctl check`: the stub of a lambda selects the fields of its source, and the stub of a migration is
empty.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from derive.document.pointer import parse_pointer
from derive.lambda_sql.parameter import parameter_of
from derive.position import Script
from derive.protocol.authoring import GeneratedFile, stub_file
from derive.protocol.specs import DerivationSpec, ProjectionSpec, TransformSpec
from derive.schema.projection import DOCUMENT, PUBLISHED_AT
from derive.schema.shape import ALL

_TYPES = ("object", "array", "boolean", "integer", "number", "string")


def shuffle_stubs(spec: DerivationSpec, missing: Collection[str]) -> list[GeneratedFile]:
    """Return a stub for each missing file of a computed shuffle."""
    stubs = []
    for transform in spec.transforms:
        if transform.shuffle.script is not None:
            stubs += stub_file(transform.shuffle.script, missing, _shuffle_stub(spec, transform))
    return stubs


def _shuffle_stub(spec: DerivationSpec, transform: TransformSpec) -> str:
    """Return the stub of a computed shuffle: one column for each component of the key."""
    types, source = transform.shuffle.key_types, transform.input.source
    lines = [
        f"-- Shuffle of transform '{transform.name}' of {spec.name}: where a document of {source} belongs.",
        f"-- It selects one row, the shuffle key: [{', '.join(types)}].",
        f"select {', '.join('null' for _ in types) or 'null'};",
    ]
    return "\n".join([*lines, *_listed_fields("There are:", spec.sources[source].projections)]) + "\n"


def sql_stubs(spec: DerivationSpec, migrations: Iterable[Script], missing: Collection[str]) -> list[GeneratedFile]:
    """Return a stub for each missing file of a migration or lambda.

    Args:
        spec: the derivation.
        migrations: its migrations, in order.
        missing: absolute paths.
    """
    stubs = []
    for number, migration in enumerate(migrations, start=1):
        stubs += stub_file(migration, missing, _migration_stub(spec, number))
    for transform in spec.transforms:
        if transform.script is not None:
            stubs += stub_file(transform.script, missing, _lambda_stub(spec, transform))
    return stubs


def _migration_stub(spec: DerivationSpec, number: int) -> str:
    """Return the stub of a migration; `number` is its place in the list, from 1."""
    return f"""\
-- Migration {number} of {spec.name}: run once, in order, before a shard's first document.
-- Never edit a migration that has run: to change its tables, append another migration to the list.
--
-- create table example (
--     id integer primary key not null,
--     name text not null
-- );
"""


def _lambda_stub(spec: DerivationSpec, transform: TransformSpec) -> str:
    """Return the stub of a lambda: it selects every field at the top of the source's documents."""
    projections = spec.sources[transform.input.source].projections
    chosen = _chosen(projections)
    lines = [
        f"-- Lambda of transform '{transform.name}' of {spec.name}: run for each document of {transform.input.source}.",
        "-- A row that it selects, or returns, is published as a document whose properties are the row's columns.",
        "select",
    ]
    for field in chosen:
        end = ";" if field is chosen[-1] else ","
        lines += [f"    -- {_describe(field)}", f"    {parameter_of(field.field)}{end}"]
    rest = [projection for projection in projections if projection not in chosen]
    return "\n".join([*lines, *_listed_fields("There are also:", rest)]) + "\n"


def _chosen(projections: Collection[ProjectionSpec]) -> list[ProjectionSpec]:
    """Return the fields that together form the document: the fields at its top level, each location once."""
    fields = [projection for projection in projections if projection.field not in (DOCUMENT, PUBLISHED_AT)]
    top = [field for field in fields if len(parse_pointer(field.pointer)) == 1]
    named = {field.pointer for field in top if field.field == field.pointer[1:]}
    chosen = [field for field in top if field.field == field.pointer[1:] or field.pointer not in named]
    return chosen or fields or list(projections)


def _listed_fields(title: str, projections: Collection[ProjectionSpec]) -> Iterator[str]:
    """Yield comment lines that list fields below a title; none if there are no fields."""
    if projections:
        yield f"\n-- {title}"
    for projection in projections:
        yield f"-- {parameter_of(projection.field)}"
        yield f"--     {_describe(projection)}"


def _describe(projection: ProjectionSpec) -> str:
    """Return the description of a field in one line: its kind, place, types, title and description."""
    kind = "Key" if projection.is_key else "Partitioned field" if projection.is_partition else "Field"
    where = projection.pointer or "the root"
    texts = [text for text in (projection.title, projection.description) if text]
    notes = [words for text in texts if (words := " ".join(text.split()))]
    return "; ".join([f"{kind} {projection.field} at {where}: {_types(projection)}", *notes])


def _types(projection: ProjectionSpec) -> str:
    types = {"number" if type_name == "fractional" else type_name for type_name in projection.types}
    if "number" in types:
        types.discard("integer")
    names = [type_name for type_name in _TYPES if type_name in types]
    text = "anything" if projection.types == ALL else " or ".join(names) or "nothing"
    if projection.format:
        text += f" ({projection.format})"
    absent = projection.exists != "must" and not projection.default
    return f"{text}, may be null" if absent or "null" in projection.types else text
