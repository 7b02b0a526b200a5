"""Stubs: initial contents of SQL files that a catalog names and that do not exist yet."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from derive.lambda_sql.parameter import parameter_of
from derive.protocol.authoring import GeneratedFile, stub_file
from derive.protocol.specs import DerivationSpec, ProjectionSpec, TransformSpec
from derive.schema.shape import ALL

_TYPES = ("object", "array", "boolean", "integer", "number", "string")


def shuffle_stubs(spec: DerivationSpec, missing: Collection[str]) -> list[GeneratedFile]:
    """Return a stub for each missing file of a computed shuffle."""
    stubs = []
    for transform in spec.transforms:
        if transform.shuffle.script is not None:
            stubs += stub_file(transform.shuffle.script, missing, shuffle_stub(spec, transform))
    return stubs


def shuffle_stub(spec: DerivationSpec, transform: TransformSpec) -> str:
    """Return the stub of a computed shuffle: one column for each component of the key."""
    types, source = transform.shuffle.key_types, transform.input.source
    lines = [
        f"-- Shuffle of transform '{transform.name}' of {spec.name}: where a document of {source} belongs.",
        f"-- It selects one row, the shuffle key: [{', '.join(types)}].",
        f"select {', '.join('null' for _ in types) or 'null'};",
    ]
    return "\n".join([*lines, *listed_fields("There are:", spec.sources[source].projections)]) + "\n"


def listed_fields(title: str, projections: Collection[ProjectionSpec]) -> Iterator[str]:
    """Yield comment lines that list fields below a title; none if there are no fields."""
    if projections:
        yield f"\n-- {title}"
    for projection in projections:
        yield f"-- {parameter_of(projection.field)}"
        yield f"--     {describe(projection)}"


def describe(projection: ProjectionSpec) -> str:
    """Return the description of a field in one line: its kind, place, types, title and description."""
    kind = "Key" if projection.is_key else "Partitioned field" if projection.is_partition else "Field"
    where = projection.pointer or "the root"
    texts = [text for text in (projection.title, projection.description) if text]
    said = [words for text in texts if (words := " ".join(text.split()))]
    return "; ".join([f"{kind} {projection.field} at {where}: {_types(projection)}", *said])


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
