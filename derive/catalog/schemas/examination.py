"""Examine each schema of a catalog once: plausibility, and constraints that are certainly unintended.

Each rule checks one subschema against the shape of the whole schema at its location.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from derive.catalog.language.yaml import Located
from derive.catalog.loading.resources import Resources
from derive.catalog.report import Report
from derive.catalog.schemas.reduction_rules import annotations_by_location, check_reductions
from derive.catalog.schemas.subschemas import Location, Subschema, show_location, subschemas_of, url_of
from derive.document.pointer import JSON, escape
from derive.errors import FlowError, Issue
from derive.protocol.resource import resolve
from derive.reduce.combiner import Combiner
from derive.schema.bundle import bundle
from derive.schema.dialect import KEYWORDS
from derive.schema.infer import infer
from derive.schema.projection import project
from derive.schema.shape import Shape
from derive.schema.validator import ASSERTED, compile_part, compile_validator
from derive.suggest import suggest


def check_plausibility(subschemas: Sequence[Subschema], shape: Shape, resources: Resources, report: Report) -> None:
    """Report defaults and reductions that contradict a schema, and required locations that cannot exist.

    Args:
        subschemas: subschemas of the schema.
        shape: shape of the schema.
        resources: loader with its files.
        report: report for issues.
    """
    check_reductions(subschemas, shape, report)
    for subschema in subschemas:
        if isinstance(subschema.at.value, dict) and "default" in subschema.at.value:
            _check_default(subschema, resources, report)
    _check_existence(subschemas, shape, report)


def check_keywords(subschemas: Sequence[Subschema], report: Report) -> None:
    """Report keywords that JSON Schema does not have, also in an invalid schema."""
    for subschema in subschemas:
        for name in subschema.at.value if isinstance(subschema.at.value, dict) else ():
            if name not in KEYWORDS and name[:2] not in ("x-", "X-"):
                guess = suggest(name, KEYWORDS)
                hint = f"did you mean '{guess}'?" if guess else "keywords of your own begin with 'x-'"
                report.add("E405", f"JSON Schema has no keyword '{name}'", subschema.at[name].key_position, hint)


def unchecked_formats(subschemas: Sequence[Subschema]) -> list[Issue]:
    """Return notes for formats that validation does not check."""
    notes = []
    for subschema in subschemas:
        schema = subschema.at.value
        name = schema.get("format") if isinstance(schema, dict) else None
        if isinstance(name, str) and name not in ASSERTED:
            guess = suggest(name, ASSERTED)
            hint = f"did you mean '{guess}'?" if guess else None
            notes.append(
                Issue("N009", f"no value is checked for the format '{name}'", subschema.at["format"].position, hint)
            )
    return notes


def _check_default(subschema: Subschema, resources: Resources, report: Report) -> None:
    at = subschema.at["default"]
    try:
        valid = _validity(subschema, resources)(at.value)
    except (FlowError, OSError):
        return  # other rules report an invalid or incomplete schema
    if not valid:
        where = show_location(subschema.location) or "the root"
        report.add("E416", f"the default of '{where}' is {at.value!r}, which its own schema does not allow", at)


def _validity(subschema: Subschema, resources: Resources) -> Callable[[JSON], bool]:
    """Return a function that validates a value against one subschema."""
    root = subschema.root
    schema = bundle(root.value, url_of(root), resources.value)
    pointer = "".join(f"/{escape(str(step))}" for step in subschema.at.path[len(root.path) :])
    return compile_part(schema, pointer, name=root.file.name)


def _check_existence(subschemas: Sequence[Subschema], shape: Shape, report: Report) -> None:
    written_at: dict[Location, Located] = {}
    for subschema in subschemas:
        written_at[subschema.location] = subschema.at
    for location in _impossible(shape, ()):
        at = next(written_at[location[:end]] for end in range(len(location), -1, -1) if location[:end] in written_at)
        where = show_location(location)
        report.add("E417", f"'{where}' must exist, and its schema allows no value there", at)


def _impossible(shape: Shape, location: Location) -> Iterable[Location]:
    """Yield the locations that every document must have and no document can have."""
    children: list[tuple[str, Shape]] = []
    if shape.types == {"object"}:
        children += [(name, shape.properties[name]) for name in sorted(shape.required) if name in shape.properties]
    if shape.types == {"array"}:
        children += [(str(index), item) for index, item in enumerate(shape.prefix[: shape.min_items])]
    for token, child in children:
        if not child.types:
            yield (*location, token)
        yield from _impossible(child, (*location, token))


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
