"""Rules for inputs of transforms and bindings: selectors, partitions and bounds of time."""

from __future__ import annotations

from derive.catalog.definitions import SourceDef
from derive.catalog.language.yaml import Located
from derive.catalog.report import Report
from derive.document.clock import parse_rfc3339
from derive.position import Position
from derive.protocol.specs import JSON, CollectionSpec, InputSpec, ProjectionSpec, SelectorSpec
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


def build_input(
    definition: SourceDef, source: CollectionSpec, index: int, name: str, position: Position, report: Report
) -> InputSpec:
    """Return an input with the partitions and times of its source.

    Args:
        definition: definition of the source.
        source: the collection.
        index: index among the inputs of the task.
        name: unique name within the task.
        position: position in the catalog.
        report: report for issues.
    """
    not_before = _clock(definition.not_before, report)
    not_after = _clock(definition.not_after, report)
    if not_before is not None and not_after is not None and not_before >= not_after:
        assert definition.not_before is not None
        report.add("E501", "'notBefore' must come before 'notAfter'", definition.not_before)
    selector = build_selector(definition.partitions, source, report)
    return InputSpec(index, name, source.name, position, selector=selector, not_before=not_before, not_after=not_after)


def _clock(at: Located | None, report: Report) -> int | None:
    if at is None:
        return None
    try:
        return parse_rfc3339(at.value)
    except (ValueError, TypeError):
        report.add("E502", f"{at.value!r} is not a time such as 2023-01-23T01:00:00Z", at)
        return None
