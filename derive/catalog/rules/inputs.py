"""Rules for inputs of transforms and bindings: partitions and bounds of time."""

from __future__ import annotations

from derive.catalog.definitions import SourceDef
from derive.catalog.language.yaml import Located
from derive.catalog.report import Report
from derive.catalog.rules.selector import build_selector
from derive.document.clock import parse_rfc3339
from derive.position import Position
from derive.protocol.specs import CollectionSpec, InputSpec


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
