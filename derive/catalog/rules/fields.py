"""Rules for a binding's fields: they exist in the collection, and none is both included and excluded."""

from __future__ import annotations

from collections.abc import Iterator

from derive.catalog.language.yaml import Located
from derive.catalog.report import Report
from derive.position import Position
from derive.protocol.specs import CollectionSpec, FieldsSpec
from derive.suggest import suggest

_SHOWN = 12


def build_fields(at: Located | None, collection: CollectionSpec, position: Position, report: Report) -> FieldsSpec:
    """Return the selected fields of a binding.

    Args:
        at: the written selection; None for the connector's recommendation.
        collection: collection of the fields.
        position: position of the binding.
        report: report for issues.
    """
    if at is None or not at.value:
        return FieldsSpec(position)
    parts = dict(at.items())
    named = list(_named(parts))
    for name, name_position in named:
        _check_known(name, name_position, collection, report)
    include = {
        name: value
        for part in ("include", "require")
        if part in parts
        for name, value in (parts[part].value or {}).items()
    }
    excluded = list(parts["exclude"].elements()) if "exclude" in parts else []
    for field_at in excluded:
        if field_at.value in include:
            report.add("E705", f"the field '{field_at.value}' is excluded, and wanted too", field_at)
    recommended = parts["recommended"].value if "recommended" in parts else True
    return FieldsSpec(
        position=at.position,
        recommended=bool(recommended),
        depth=None if isinstance(recommended, bool) else int(recommended),
        include=include,
        exclude=tuple(field_at.value for field_at in excluded),
        key=_key(parts.get("groupBy"), collection, report),
        positions=dict(reversed(named)),
    )


def _named(parts: dict[str, Located]) -> Iterator[tuple[str, Position]]:
    """Yield the name and position of each named field."""
    for part in ("require", "include"):
        if part in parts:
            yield from ((name, field_at.key_position) for name, field_at in parts[part].items())
    for part in ("exclude", "groupBy"):
        if part in parts:
            yield from ((field_at.value, field_at.position) for field_at in parts[part].elements())


def _check_known(name: str, position: Position, collection: CollectionSpec, report: Report) -> None:
    known = [projection.field for projection in collection.projections]
    if name in known:
        return
    guess = suggest(name, known)
    listed = ", ".join(known[:_SHOWN]) + (", …" if len(known) > _SHOWN else "")
    hint = f"did you mean '{guess}'?" if guess else f"it has: {listed}"
    report.add("E704", f"'{collection.name}' has no field '{name}'", position, hint)


def _key(at: Located | None, collection: CollectionSpec, report: Report) -> tuple[str, ...]:
    if at is None or not at.value:
        return ()
    pointers = {projection.field: projection.pointer for projection in collection.projections}
    fields = tuple(at.value)
    if all(name in pointers for name in fields) and tuple(pointers[name] for name in fields) != collection.key:
        key = ", ".join(collection.key)
        message = f"'groupBy' names other locations than the key of '{collection.name}', which is {key}"
        report.add("E706", message, at, "derive a collection with that key, and materialize it")
        return ()
    return fields
