"""Stubs: initial contents of SQL files that a catalog names and that do not exist yet.

A stub passes `flowctl check`: the stub of a lambda selects the fields of its source, and the stub of a migration is
empty.
"""

from __future__ import annotations

from collections.abc import Collection

from connectors.derive_sqlite.config import migrations_of
from derive.document.pointer import parse_pointer
from derive.lambda_sql.parameter import parameter_of
from derive.lambda_sql.stub import describe, listed_fields
from derive.protocol.authoring import GeneratedFile, stub_file
from derive.protocol.specs import DerivationSpec, ProjectionSpec, TransformSpec
from derive.schema.projection import DOCUMENT, PUBLISHED_AT


def sql_stubs(spec: DerivationSpec, missing: Collection[str]) -> list[GeneratedFile]:
    """Return a stub for each missing file of a migration or lambda.

    Args:
        spec: the derivation.
        missing: absolute paths.
    """
    stubs = []
    for number, migration in enumerate(migrations_of(spec), start=1):
        stubs += stub_file(migration, missing, migration_stub(spec, number))
    for transform in spec.transforms:
        if transform.script is not None:
            stubs += stub_file(transform.script, missing, lambda_stub(spec, transform))
    return stubs


def migration_stub(spec: DerivationSpec, number: int) -> str:
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


def lambda_stub(spec: DerivationSpec, transform: TransformSpec) -> str:
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
        lines += [f"    -- {describe(field)}", f"    {parameter_of(field.field)}{end}"]
    rest = [projection for projection in projections if projection not in chosen]
    return "\n".join([*lines, *listed_fields("There are also:", rest)]) + "\n"


def _chosen(projections: Collection[ProjectionSpec]) -> list[ProjectionSpec]:
    """Return the fields that together form the document: the fields at its top level, each location once."""
    fields = [projection for projection in projections if projection.field not in (DOCUMENT, PUBLISHED_AT)]
    top = [field for field in fields if len(parse_pointer(field.pointer)) == 1]
    named = {field.pointer for field in top if field.field == field.pointer[1:]}
    chosen = [field for field in top if field.field == field.pointer[1:] or field.pointer not in named]
    return chosen or fields or list(projections)
