"""Rules for steps of tests: ingested documents are valid, and verified documents are in the order of the key."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from urllib.parse import urlsplit

from derive.catalog.definitions import StepDef
from derive.catalog.language.yaml import Located
from derive.catalog.loading.resources import Resources
from derive.catalog.report import Report
from derive.catalog.rules.selector import build_selector
from derive.document.key import compile_key
from derive.document.pointer import MISSING, compile_pointer
from derive.errors import CatalogError, DocumentError
from derive.protocol.resource import resolve
from derive.protocol.specs import CollectionSpec, IngestStep, StepTime, VerifyStep
from derive.schema.redaction import Redactor
from derive.schema.validator import compile_validator


class StepBuilder:
    """Builds the steps of tests.

    Args:
        resources: loader with the files of documents.
        report: report for issues.
    """

    def __init__(self, resources: Resources, report: Report) -> None:
        self._resources = resources
        self._report = report

    def build(self, definition: StepDef, collection: CollectionSpec, time: StepTime | None) -> IngestStep | VerifyStep:
        """Return the step, with its collection and time."""
        position = definition.at.key_position
        if definition.kind == "ingest":
            self._check_documents(definition, collection)
            return IngestStep(collection.name, definition.documents, definition.description, position, time)
        self._check_order(definition, collection)
        selector = build_selector(definition.source.partitions, collection, self._report)
        return VerifyStep(collection.name, selector, definition.documents, definition.description, position, time)

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
                    said = validator.violation(document).message.replace("fails its schema", f"fails its {which}")
                    self._report.add("E604", said, at)

    def _check_order(self, definition: StepDef, collection: CollectionSpec) -> None:
        # Documents without all key properties may be anywhere, so they are skipped.
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
                message = f"documents to verify are not in the order of the key of '{collection.name}'"
                self._report.add("E602", message, at, "this one belongs further up")
                return

    def _documents(self, definition: StepDef) -> Iterator[Located]:
        """Yield each document with its position."""
        at = definition.documents_at
        if isinstance(at.value, str):
            name = at.file.name
            base = name if urlsplit(name).scheme in ("http", "https") else os.path.abspath(name)
            try:
                file = self._resources.document(resolve(base, at.value))
            except (OSError, CatalogError):  # the loader has read it before
                return
            at = Located(file, (), file.value)
        yield from at.elements()
