"""Definitions: the written values of a catalog with their positions, before rules are applied; and a report of issues.

A schema file that several collections share is examined for each collection, and each of its issues is reported once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from derive.catalog.language.yaml import Located
from derive.document.pointer import JSON
from derive.errors import Issue
from derive.position import Position, Script


@dataclass(frozen=True, slots=True)
class SourceDef:
    """A reference to a collection, with a selector and bounds of time."""

    name: Located
    partitions: Located | None = None
    not_before: Located | None = None
    not_after: Located | None = None


@dataclass(frozen=True, slots=True)
class TransformDef:
    """One entry of `transforms`."""

    name: Located
    source: SourceDef
    shuffle: Located | None
    shuffle_script: Script | None
    script: Script | None
    priority: int
    read_delay: int
    backfill: int
    formerly: Located | None = None
    follows: bool = False
    quarantines: bool = False


@dataclass(frozen=True, slots=True)
class DeriveDef:
    """A `derive` stanza."""

    connector: str
    connector_config: Any
    transforms: tuple[TransformDef, ...]
    shuffle_key_types: Located | None
    tick: int
    disabled: bool
    redact_salt: Located | None = None


@dataclass(frozen=True, slots=True)
class LoadedSchema:
    """A schema with all schemas that it refers to.

    Attributes:
        schema: the self-contained schema.
        positions: position of each keyword, by JSON pointer.
        annotated: the schema of documents before redaction; None without redaction.
    """

    schema: JSON
    positions: Mapping[str, Position]
    annotated: JSON = None


@dataclass(frozen=True, slots=True)
class CollectionDef:
    """An entry of `collections`."""

    name: str
    at: Located
    key: Located | None
    write: LoadedSchema
    read: LoadedSchema
    schema_at: Located
    projections: Located | None
    derive: DeriveDef | None


@dataclass(frozen=True, slots=True)
class StepDef:
    """A step of a test: `kind` is `ingest` or `verify`, and `when` is its `at`."""

    kind: str
    at: Located
    source: SourceDef
    documents: tuple[JSON, ...]
    documents_at: Located
    when: Located | None = None


@dataclass(frozen=True, slots=True)
class AdvanceDef:
    """A step of a test that lets time pass."""

    at: Located


@dataclass(frozen=True, slots=True)
class TestDef:
    """An entry of `tests`."""

    __test__ = False  # pytest would collect a class of this name as a test

    name: str
    at: Located
    steps: tuple[StepDef | AdvanceDef, ...]


@dataclass(frozen=True, slots=True)
class BindingDef:
    """One entry of a materialization's `bindings`."""

    at: Located
    source: SourceDef
    resource: Located
    fields: Located | None
    priority: int
    backfill: int
    follows: bool = False


@dataclass(frozen=True, slots=True)
class MaterializationDef:
    """An entry of `materializations`; `url` is the URL of its file, the base of relative file names."""

    name: str
    at: Located
    url: str
    endpoint: Located
    bindings: tuple[BindingDef, ...]
    tick: int
    disabled: bool


@dataclass(frozen=True, slots=True)
class CatalogDef:
    """All files of a catalog together.

    Attributes:
        source: path of the root file.
        collections: collection definitions by name.
        tests: test definitions by name.
        captures: captures by name, whose structure has been checked.
        materializations: materialization definitions by name.
    """

    source: str
    collections: Mapping[str, CollectionDef] = field(default_factory=dict)
    tests: Mapping[str, TestDef] = field(default_factory=dict)
    captures: Mapping[str, Located] = field(default_factory=dict)
    materializations: Mapping[str, MaterializationDef] = field(default_factory=dict)


class Report:
    """Collects issues.

    Attributes:
        issues: distinct issues.
        count: number of issues including repeated ones, which grows with each detection.
    """

    def __init__(self) -> None:
        self.issues: list[Issue] = []
        self.count = 0
        self._seen: set[Issue] = set()

    def add(self, code: str, message: str, at: Located | Position, hint: str | None = None) -> None:
        """Add an issue.

        Args:
            code: code of the rule.
            message: the defect, with the name of the affected thing.
            at: place of the defect.
            hint: the probable intention, or a remedy.
        """
        self.take([Issue(code, message, at.position if isinstance(at, Located) else at, hint)])

    def take(self, issues: Iterable[Issue]) -> None:
        """Add issues, each of them once."""
        for issue in issues:
            self.count += 1
            if issue not in self._seen:
                self._seen.add(issue)
                self.issues.append(issue)
