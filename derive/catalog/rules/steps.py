"""Rules for steps of tests: their documents, and the time of each step.

A test has a schedule if it has an `at` or an `advance`. Then all times are known before the run: an offset counts from
the beginning of the test, `advance` counts from the present time, and a verified collection is known at the end of the
present tick. A step that would go back in time is an issue.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from urllib.parse import urlsplit

from derive.catalog.definitions import AdvanceDef, Report, StepDef
from derive.catalog.language.yaml import Located
from derive.catalog.loading import Resources
from derive.catalog.rules.transforms import build_selector
from derive.document.clock import format_rfc3339, parse_duration, parse_rfc3339
from derive.document.key import compile_key
from derive.document.pointer import MISSING, compile_pointer
from derive.errors import CatalogError, DocumentError, Issue, suggest, suggest_misspelt
from derive.position import resolve
from derive.protocol.specs import AdvanceStep, CollectionSpec, IngestStep, StepTime, VerifyStep, show_offset
from derive.schema.redaction import Redactor
from derive.schema.shape import Shape, locate
from derive.schema.validator import compile_validator

BEGIN = 1_704_067_200_000_000
"""Beginning of a test whose first documents have no time: 2024-01-01T00:00:00Z, in microseconds."""

_LAST = parse_rfc3339("9999-01-01T00:00:00Z")
_BEGINS = "a test begins at the time of its first ingest step, or at 2024-01-01T00:00:00Z if that step has no time"


class Schedule:
    """Times of the steps of one test, computed in the order of the steps.

    Args:
        steps: steps of the test.
        ticks: tick of each derivation by name, in microseconds.
        report: report for issues.

    Attributes:
        begin: timestamp of the beginning of the test.
    """

    def __init__(self, steps: Sequence[StepDef | AdvanceDef], ticks: Mapping[str, int], report: Report) -> None:
        ingests = [step for step in steps if isinstance(step, StepDef) and step.kind == "ingest"]
        self._tells_time = any(isinstance(step, AdvanceDef) for step in steps) or any(step.when for step in ingests)
        self._ticks = ticks
        self._report = report
        first = ingests[0].when if ingests else None
        begin = None if first is None or first.value.startswith("+") else _parse(first.value, BEGIN)
        self.begin = begin if begin is not None and 0 <= begin < _LAST else BEGIN
        self._present = self._wall = self.begin
        self._latest = -1  # timestamp of the last document

    def ingest(self, step: StepDef) -> StepTime | None:
        """Advance the time of the test by one ingest step and return it; None in a test without a schedule."""
        if not self._tells_time:
            return None
        self._present = self._wall = self._wall if step.when is None else self._clock(step.when)
        self._latest = max(self._wall, self._latest + 1) + len(step.documents) - 1
        return StepTime(self._present, self._wall)

    def _clock(self, when: Located) -> int:
        """Return the time of an `at`; if it is invalid or in the past, add an issue and return the present time."""
        clock = _parse(when.value, self.begin)
        if clock is None:
            message = f"'at' is neither an RFC 3339 time nor an offset from the beginning of the test: {when.value!r}"
            is_duration = _parse(f"+{when.value}", self.begin) is not None
            hint = f"did you mean '+{when.value}'?" if is_duration else "such as '2024-05-01T09:00:00Z' or '+20m'"
            self._report.add("E605", message, when, hint)
        elif self._is_within(clock, when) and self._is_next(clock, when):
            return clock
        return self._wall

    def advance(self, step: AdvanceDef) -> AdvanceStep:
        """Return the step with the time at which it ends."""
        clock = self._present + parse_duration(step.at.value)
        if self._latest < 0:
            hint = f"give the documents of the first ingest step a time, such as 'at: +{step.at.value}'"
            self._report.add("E606", "the test advances time before its first ingest step", step.at, hint)
        elif self._is_within(clock, step.at):
            self._present = clock
            self._wall = max(self._wall, clock)
        return AdvanceStep(StepTime(self._present, self._wall), step.at.key_position)

    def verify(self, derivations: Iterable[str]) -> StepTime | None:
        """Return the time of a verify step: the end of the tick, for all derivations of the verified collection.

        Args:
            derivations: names of these derivations.

        Returns:
            The time; None in a test without a schedule.
        """
        if not self._tells_time:
            return None
        tick = math.lcm(*(self._ticks[name] for name in derivations))
        if tick > 1 and self._latest >= 0:
            last = max(self._present, self._latest)
            self._wall = max(self._wall, last - last % tick + tick)
        return StepTime(self._present, self._wall)

    def _is_within(self, clock: int, at: Located) -> bool:
        if 0 <= clock < _LAST:
            return True
        self._report.add("E608", f"times of a test are in the years 1970 to 9998, and {at.value} is not", at)
        return False

    def _is_next(self, clock: int, when: Located) -> bool:
        if clock >= self._wall:
            return True
        is_offset = when.value.startswith("+")
        present, wall = (
            show_offset(time, self.begin) if is_offset else format_rfc3339(time) for time in (self._present, self._wall)
        )
        if clock < self._present:
            message = f"time cannot go back: 'at' is {when.value}, but the test is at {present} already"
            hint = "offsets count from the beginning of the test" if is_offset else _BEGINS
        else:
            message = f"time cannot go back: 'at' is {when.value}, but contents were verified at {wall}"
            hint = f"ingest before the verify step, or from {wall} on"
        self._report.add("E607", message, when, hint)
        return False


def _parse(text: str, begin: int) -> int | None:
    """Return the timestamp of an RFC 3339 time, or of an offset from `begin`; None for other texts."""
    try:
        return begin + parse_duration(text[1:]) if text.startswith("+") else parse_rfc3339(text)
    except ValueError:
        return None


def _unmentioned(at: Located, shape: Shape, collection: str) -> Iterator[Issue]:
    """Yield a note for each property of an expected document that the schema refuses, or that is probably misspelt."""
    if isinstance(at.value, dict):
        for name in at.value:
            member, exists = locate(shape, (name,))
            known = {known for known, one in shape.properties.items() if one.types and known not in at.value}
            near = suggest_misspelt(name, known)
            if exists == "cannot" or (exists == "implicit" and near):
                fault = "refuses" if exists == "cannot" else "does not mention"
                message = f"the test expects '{name}', which the schema of '{collection}' {fault}"
                guess = near or suggest(name, known)
                hint = f"did you mean '{guess}'?" if guess else None
                yield Issue("N609", message, at[name].key_position, hint)
            else:
                yield from _unmentioned(at[name], member, collection)
    elif isinstance(at.value, list):
        for index, item in enumerate(at.elements()):
            yield from _unmentioned(item, locate(shape, (str(index),))[0], collection)


class StepBuilder:
    """Builds the steps of tests.

    Args:
        shapes: the shape of each collection's documents, which may still be filled.
        resources: loader with the files of documents.
        report: report for issues.
        notes: list for remarks.
    """

    def __init__(self, shapes: Mapping[str, Shape], resources: Resources, report: Report, notes: list[Issue]) -> None:
        self._shapes = shapes
        self._resources = resources
        self._report = report
        self._notes = notes

    def build(self, definition: StepDef, collection: CollectionSpec, time: StepTime | None) -> IngestStep | VerifyStep:
        """Return the step, with its collection and time."""
        position = definition.at.key_position
        if definition.kind == "ingest":
            self._check_documents(definition, collection)
            return IngestStep(collection.name, definition.documents, position, time)
        self._check_order(definition, collection)
        shape = self._shapes[collection.name]
        notes: dict[str, Issue] = {}  # the first of each property
        for at in self._documents(definition):
            for note in _unmentioned(at, shape, collection.name):
                notes.setdefault(note.message, note)
        self._notes += notes.values()
        selector = build_selector(definition.source.partitions, collection, self._report)
        return VerifyStep(collection.name, selector, definition.documents, position, time)

    def _check_documents(self, definition: StepDef, collection: CollectionSpec) -> None:
        schemas = {"write schema": collection.write_schema, "read schema": collection.read_schema}
        if collection.write_schema is collection.read_schema:
            schemas = {"schema": collection.read_schema}
        validators = {which: compile_validator(schema, name=collection.name) for which, schema in schemas.items()}
        redactor = Redactor(collection.redaction, b"") if collection.redaction else None
        for at in self._documents(definition):
            document = redactor.redact(at.value) if redactor else at.value
            for which, validator in validators.items():
                if not validator.is_valid(document):
                    message = validator.violation(document).message.replace("fails its schema", f"fails its {which}")
                    self._report.add("E604", message, at)

    def _check_order(self, definition: StepDef, collection: CollectionSpec) -> None:
        # Documents without all key properties may be at any place, so they are skipped.
        pack = compile_key(collection.key, collection.key_defaults)
        pointers = [compile_pointer(pointer) for pointer in collection.key]
        keyed: list[tuple[bytes, Located]] = []
        for at in self._documents(definition):
            if all(get(at.value) is not MISSING for get in pointers):
                try:
                    keyed.append((pack(at.value), at))
                except DocumentError as exc:
                    self._report.add("E604", exc.message, at)
        for (before, _), (key, at) in pairwise(keyed):
            if key < before:
                message = f"the expected documents are not in the order of the key of '{collection.name}'"
                self._report.add("E602", message, at, "move this document up")
                return

    def _documents(self, definition: StepDef) -> Iterator[Located]:
        """Yield each document with its position."""
        at = definition.documents_at
        if isinstance(at.value, str):
            name = at.file.name
            base = name if urlsplit(name).scheme in ("http", "https") else os.path.abspath(name)
            try:
                file = self._resources.document(resolve(base, at.value))
            except (OSError, CatalogError):  # the loader has reported the error
                return
            at = Located(file, (), file.value)
        yield from at.elements()
