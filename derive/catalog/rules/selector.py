"""Rules for selectors: their fields are logical partitions of the collection, and their values are possible."""

from __future__ import annotations

from derive.catalog.language.yaml import Located
from derive.catalog.report import Report
from derive.protocol.specs import JSON, CollectionSpec, ProjectionSpec, SelectorSpec
from derive.schema.shape import type_of
from derive.suggest import suggest


def build_selector(at: Located | None, source: CollectionSpec, report: Report) -> SelectorSpec:
    """Return the selector that a person wrote.

    Args:
        at: an object with `include` and `exclude`; None to select everything.
        source: the collection.
        report: report for issues of unknown fields and impossible values.
    """
    if at is None or not at.value:
        return SelectorSpec()
    projections = {projection.field: projection for projection in source.projections}
    sides: dict[str, dict[str, tuple[JSON, ...]]] = {"include": {}, "exclude": {}}
    for side, fields in at.items():
        for field, values in fields.items():
            listed = list(values.elements()) if isinstance(values.value, list) else [values]
            if _is_partition(source, projections, field, values, report):
                for value_at in listed:
                    _check_value(projections[field], value_at, report)
            sides[side][field] = tuple(value_at.value for value_at in listed)
    return SelectorSpec(sides["include"], sides["exclude"])


def _is_partition(
    source: CollectionSpec, projections: dict[str, ProjectionSpec], field: str, values: Located, report: Report
) -> bool:
    known = [partition.field for partition in source.partitions]
    if field in known:
        return True
    guess = suggest(field, known)
    listed = f"it has: {', '.join(known) or 'none'}"
    if field in projections:
        message = f"'{field}' is not a logical partition of '{source.name}'"
        pointer = projections[field].pointer
        hint = f"declare it there: 'projections: {{{field}: {{location: {pointer}, partition: true}}}}'"
        report.add("E306", message, values.key_position, hint)
    else:
        hint = f"did you mean '{guess}'?" if guess else listed
        report.add("E309", f"'{source.name}' has no field '{field}'", values.key_position, hint)
    return False


def _check_value(partition: ProjectionSpec, at: Located, report: Report) -> None:
    kind = type_of(at.value)
    if kind not in partition.types:
        allowed = ", ".join(sorted(partition.types))
        report.add("E310", f"the logical partition '{partition.field}' cannot be {at.value!r}: it is {allowed}", at)
    elif at.value == "":
        report.add("E311", f"the logical partition '{partition.field}' cannot be selected by an empty string", at)
