"""Stubs: the beginnings of SQL files that a catalog names and that are still to be written.

A stub passes `flowctl check` as it is: a lambda's selects the fields of its source, a migration's does nothing yet.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from connectors.derive_sqlite.parameter import parameter_of
from derive.document.pointer import parse_pointer
from derive.position import Script
from derive.protocol.derive import GeneratedFile
from derive.protocol.specs import DerivationSpec, ProjectionSpec, TransformSpec
from derive.schema.projection import DOCUMENT, PUBLISHED_AT
from derive.schema.shape import ALL

_TYPES = ("object", "array", "boolean", "integer", "number", "string")


def sql_stubs(spec: DerivationSpec, missing: Collection[str]) -> list[GeneratedFile]:
    """A stub for each missing file of SQL.

    Args:
        spec: the derivation.
        missing: absolute paths.
    """
    found = []
    for number, migration in enumerate(spec.migrations, start=1):
        found += _stub(migration, missing, migration_stub(spec, number))
    for each in spec.transforms:
        if each.script is not None:
            found += _stub(each.script, missing, lambda_stub(spec, each))
    return found + shuffle_stubs(spec, missing)


def shuffle_stubs(spec: DerivationSpec, missing: Collection[str]) -> list[GeneratedFile]:
    """A stub for each missing file of a computed shuffle, which is SQL in every language."""
    found = []
    for each in spec.transforms:
        if each.shuffle.script is not None:
            found += _stub(each.shuffle.script, missing, shuffle_stub(spec, each))
    return found


def _stub(script: Script, missing: Collection[str], text: str) -> list[GeneratedFile]:
    path = os.path.abspath(script.position.file)
    return [GeneratedFile(Path(path), text, is_stub=True)] if path in missing else []


def migration_stub(spec: DerivationSpec, number: int) -> str:
    """The beginning of a migration; `number` is its place in the list, from 1."""
    return f"""\
-- Migration {number} of {spec.name}: run once, in order, before a shard's first document.
-- A migration that has run is never edited; what it made is changed by another, appended to the list.
--
-- create table example (
--     id integer primary key not null,
--     name text not null
-- );
"""


def lambda_stub(spec: DerivationSpec, transform: TransformSpec) -> str:
    """The beginning of a lambda: it selects every field at the top of the source's documents."""
    projections = spec.sources[transform.input.source].projections
    chosen = _chosen(projections)
    lines = [
        f"-- Lambda of transform '{transform.name}' of {spec.name}: run for each document of {transform.input.source}.",
        "-- A row that it selects, or returns, is published as a document whose properties are the row's columns.",
        "select",
    ]
    for each in chosen:
        end = ";" if each is chosen[-1] else ","
        lines += [f"    -- {describe(each)}", f"    {parameter_of(each.field)}{end}"]
    rest = [each for each in projections if each not in chosen]
    return "\n".join([*lines, *_list("There are also:", rest)]) + "\n"


def shuffle_stub(spec: DerivationSpec, transform: TransformSpec) -> str:
    """The beginning of a computed shuffle: a column for each component of the key."""
    types, source = transform.shuffle.key_types, transform.input.source
    lines = [
        f"-- Shuffle of transform '{transform.name}' of {spec.name}: where a document of {source} belongs.",
        f"-- It selects one row, the shuffle key: [{', '.join(types)}].",
        f"select {', '.join('null' for _ in types) or 'null'};",
    ]
    return "\n".join([*lines, *_list("There are:", spec.sources[transform.input.source].projections)]) + "\n"


def _list(title: str, projections: Collection[ProjectionSpec]) -> Iterator[str]:
    if projections:
        yield f"\n-- {title}"
    for each in projections:
        yield f"-- {parameter_of(each.field)}"
        yield f"--     {describe(each)}"


def _chosen(projections: Collection[ProjectionSpec]) -> list[ProjectionSpec]:
    """Fields that together are the document: those at its top, each location once."""
    fields = [each for each in projections if each.field not in (DOCUMENT, PUBLISHED_AT)]
    top = [each for each in fields if len(parse_pointer(each.pointer)) == 1]
    named = {each.pointer for each in top if each.field == each.pointer[1:]}
    chosen = [each for each in top if each.field == each.pointer[1:] or each.pointer not in named]
    return chosen or fields or list(projections)


def describe(projection: ProjectionSpec) -> str:
    """A field on one line: what it is, where, of which types, and what its schema says of it."""
    kind = "Key" if projection.is_key else "Partitioned field" if projection.is_partition else "Field"
    where = projection.pointer or "the root"
    said = [each for text in (projection.title, projection.description) if text and (each := " ".join(text.split()))]
    return "; ".join([f"{kind} {projection.field} at {where}: {_types(projection)}", *said])


def _types(projection: ProjectionSpec) -> str:
    types = {"number" if each == "fractional" else each for each in projection.types}
    if "number" in types:
        types.discard("integer")
    names = [each for each in _TYPES if each in types]
    text = "anything" if projection.types == ALL else " or ".join(names) or "nothing"
    if projection.format:
        text += f" ({projection.format})"
    absent = projection.exists != "must" and not projection.default
    return f"{text}, may be null" if absent or "null" in projection.types else text
