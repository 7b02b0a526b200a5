"""Examine each schema of a catalog once, even if several collections share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from derive.catalog.language.yaml import Located
from derive.catalog.loading.resources import Resources
from derive.catalog.report import Report
from derive.catalog.schemas.plausibility import check_keywords, check_plausibility, unchecked_formats
from derive.catalog.schemas.reduction_rules import annotations_by_location
from derive.catalog.schemas.subschemas import Location, subschemas_of, url_of
from derive.document.pointer import JSON
from derive.errors import FlowError, Issue
from derive.protocol.resource import resolve
from derive.reduce.combiner import Combiner
from derive.schema.infer import infer
from derive.schema.projection import project
from derive.schema.shape import Shape
from derive.schema.validator import compile_validator


@dataclass(frozen=True)  # without slots, for the cached property
class ExaminedSchema:
    """The result of examining a schema.

    Attributes:
        shape: shape of the schema.
        annotations: `reduce` annotations by location.
    """

    shape: Shape
    annotations: Mapping[Location, Sequence[Located]]

    @cached_property
    def fields(self) -> Mapping[str, str]:
        """Return the pointer of each inferred field, by field."""
        return {projection.field: projection.pointer for projection in project(self.shape, (), {})}


class SchemaExaminer:
    """Examines schemas.

    Args:
        resources: loader with the files of schemas.
        report: report for issues.
        notes: list for remarks that are no errors.
    """

    def __init__(self, resources: Resources, report: Report, notes: list[Issue]) -> None:
        self._resources = resources
        self._report = report
        self._notes = notes
        self._good: dict[str, ExaminedSchema] = {}

    def examine(self, at: Located, schema: JSON, name: str) -> ExaminedSchema | None:
        """Return the result for a schema; None, and an issue, if it is invalid.

        Args:
            at: place of the schema: an object, or the name of its file.
            schema: the self-contained schema.
            name: name of its collection.
        """
        shared = resolve(url_of(at), at.value) if isinstance(at.value, str) else None
        if shared in self._good:
            return self._good[shared]
        before = self._report.count
        examined = self._examine(at, schema, name)
        if examined is not None and shared is not None and self._report.count == before:
            self._good[shared] = examined
        return examined

    def _examine(self, at: Located, schema: JSON, name: str) -> ExaminedSchema | None:
        before = self._report.count
        subschemas = subschemas_of(at, self._resources, self._report)
        if self._report.count > before:
            return None
        check_keywords(subschemas, self._report)
        self._notes += [note for note in dict.fromkeys(unchecked_formats(subschemas)) if note not in self._notes]
        if not self._compiles(lambda: compile_validator(schema, name=name), at, before):
            return None
        shape = infer(schema)
        if shape.types != {"object"}:
            allowed = ", ".join(sorted(shape.types)) if len(shape.types) < 7 else "anything"
            message = f"the schema of '{name}' must be of type object, and allows {allowed or 'nothing'}"
            self._report.add("E402", message, at, "add 'type: object'")
        check_plausibility(subschemas, shape, self._resources, self._report)
        if not self._compiles(lambda: Combiner(schema, name=name), at, before):
            return None
        return ExaminedSchema(shape, annotations_by_location(subschemas))

    def _compiles(self, compiled: Callable[[], object], at: Located, before: int) -> bool:
        """Return true if a schema compiles; add an issue otherwise, unless another rule has reported the cause."""
        try:
            compiled()
        except FlowError as exc:
            if self._report.count == before:
                self._report.add("E403", exc.message, at, exc.hint)
            return False
        return True
