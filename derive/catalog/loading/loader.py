"""Load definitions from the root file, through imports and references, and the code files that they name.

The catalog's JSON Schema checks the structure of files, and `build` checks their meaning. The loader loads every value
with a valid structure, even from a file with issues, so that one run reports everything.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from derive.catalog.definitions import (
    AdvanceDef,
    BindingDef,
    CatalogDef,
    CollectionDef,
    DeriveDef,
    MaterializationDef,
    SourceDef,
    StepDef,
    TestDef,
    TransformDef,
)
from derive.catalog.language.structure import check_structure, settings_without_effect
from derive.catalog.language.yaml import Located
from derive.catalog.language.yaml import Path as Place
from derive.catalog.loading.resources import Resources, project_root
from derive.catalog.loading.schema_loader import SchemaLoader
from derive.catalog.report import Report
from derive.document.clock import parse_duration
from derive.errors import CatalogError, Issue
from derive.position import Position, Script
from derive.protocol.authoring import LocatedValue
from derive.protocol.entry_points import find_authoring
from derive.protocol.resource import reason_of, resolve, show
from derive.protocol.specs import JSON

_NO_SPACE = "a string without any space is taken for the name of a file"
_GENERATE = "'flowctl generate' begins it"


@dataclass(frozen=True, slots=True)
class CodeFiles:
    """Loads code that is named by a catalog file; the connectors' view of the catalog (`CatalogFiles`).

    Attributes:
        url: URL of the catalog's file, the base of relative paths.
        root: folder of the project.
        resources: loader of files.
        issues: report for issues.
        missing: set for URLs of missing code files.
    """

    url: str
    root: str
    resources: Resources
    issues: Report
    missing: set[str]

    def script(self, at: LocatedValue, role: str, *, may_be_inline: bool = True) -> Script | None:
        """Return code that is written inline or, if the string has no white space, in the named file."""
        text: str = at.value
        if may_be_inline and (any(character.isspace() for character in text) or not text):
            return at.script()
        url = resolve(self.url, text)
        try:
            if "#" in text:
                raise OSError("only schemas have parts that '#' can name")
            content = self.resources.text(url)
        except OSError as exc:
            is_missing = isinstance(exc, FileNotFoundError)
            hint = f"{_NO_SPACE}; {_GENERATE}" if is_missing else _NO_SPACE
            issue = Issue("E003", f"cannot load {role} {show(url)}: {reason_of(exc)}", at.position, hint)
            self.report(issue, missing=url if is_missing else "")
            return None
        return Script(content, content, Position(show(url)))

    def text(self, url: str) -> str:
        """Return the text of a file."""
        return self.resources.text(url)

    def content(self, url: str) -> bytes:
        """Return the bytes of a file."""
        return self.resources.content(url)

    def report(self, issue: Issue, missing: str = "") -> None:
        """Add an issue, and the URL of a missing file that `generate` can create."""
        self.issues.take([issue])
        if missing:
            self.missing.add(missing)


Entry = TypeVar("Entry")
"""Definition of an entry in a catalog's map."""

_NO_CATALOG = "'flowctl init' begins a catalog, and '--source FILE' names one that is elsewhere"

_TICK, _MATERIALIZED_TICK = 1_000_000, 10_000


class Loader:
    """Loads a catalog.

    Attributes:
        report: report for issues.
        notes: remarks that are no errors.
        broken: names whose definitions cannot be loaded.
        incomplete: true if a file could not be loaded, so that its definitions are unknown.
        missing: URLs of missing code files; each has an issue too.
        resources: loader with the files loaded so far.
    """

    def __init__(self, resources: Resources | None = None) -> None:
        self.report = Report()
        self.notes: list[Issue] = []
        self.broken: set[str] = set()
        self.incomplete = False
        self.missing: set[str] = set()
        self.resources = resources or Resources()
        self._schemas = SchemaLoader(self.resources, self.report)
        self._collections: dict[str, CollectionDef] = {}
        self._tests: dict[str, TestDef] = {}
        self._captures: dict[str, Located] = {}
        self._materializations: dict[str, MaterializationDef] = {}
        self._defined: dict[tuple[str, str], Position] = {}
        self._bad: frozenset[Place] = frozenset()
        self._root = os.getcwd()

    def load(self, source: Path) -> CatalogDef:
        """Return all definitions that are reachable from the root file `source`."""
        self._root = str(project_root(source))
        pending = [(os.path.normpath(source.absolute()), Position(str(source)))]
        seen = set()
        while pending:
            url, referrer = pending.pop(0)
            if url in seen:
                continue
            seen.add(url)
            try:
                file = self.resources.document(url)
            except OSError as exc:
                is_new = isinstance(exc, FileNotFoundError) and len(seen) == 1
                hint = _NO_CATALOG if is_new else None
                self.report.add("E003", f"cannot load {show(url)}: {reason_of(exc)}", referrer, hint)
                self.incomplete = True
            except CatalogError as exc:
                self.report.take(exc.issues)
                self.incomplete = True
            else:
                pending += self._file(Located(file, (), {} if file.value is None else file.value), url)
        return CatalogDef(str(source), self._collections, self._tests, self._captures, self._materializations)

    def _fields(self, at: Located | None) -> dict[str, Located]:
        """Return the loadable properties of an object."""
        if at is None or at.value is None:
            return {}
        return {name: value for name, value in at.items() if value.path not in self._bad}

    def _elements(self, at: Located | None) -> list[Located]:
        """Return the loadable items of an array."""
        if at is None or at.value is None:
            return []
        return [element for element in at.elements() if element.path not in self._bad]

    # Files

    def _file(self, root: Located, url: str) -> list[tuple[str, Position]]:
        """Load one file, and return the files that it imports."""
        issues, self._bad = check_structure(root.file)
        self.report.take(issues)
        self.notes += settings_without_effect(root.file)
        if () in self._bad:
            self.incomplete = True
            return []
        self.incomplete = self.incomplete or any(len(path) == 1 for path in self._bad)
        fields = self._fields(root)
        self._entries(fields.get("collections"), self._collections, "collection", lambda at: self._collection(at, url))
        self._entries(fields.get("tests"), self._tests, "test", lambda at: self._test(at, url))
        self._entries(fields.get("captures"), self._captures, "capture", self._capture)
        materializations = fields.get("materializations")
        self._entries(
            materializations, self._materializations, "materialization", lambda at: self._materialization(at, url)
        )
        return [target for element in self._elements(fields.get("import")) if (target := self._import(element, url))]

    def _import(self, at: Located, url: str) -> tuple[str, Position] | None:
        if "#" in at.value:
            message = f"cannot import {at.value}: only schemas have parts that '#' can name"
            self.report.add("E003", message, at.position)
            self.incomplete = True
            return None
        return resolve(url, at.value), at.position

    def _entries(
        self, at: Located | None, into: dict[str, Entry], kind: str, load: Callable[[Located], Entry | None]
    ) -> None:
        if at is None or at.value is None:
            return
        for name, entry in at.items():
            first = self._defined.setdefault((kind, name), entry.key_position)
            if first != entry.key_position:
                self.report.add(
                    "E102", f"{kind} '{name}' is defined a second time; first at {first}", entry.key_position
                )
                continue
            loaded = None if entry.path in self._bad else load(entry)
            if loaded is None:
                self.broken.add(name)
            else:
                into[name] = loaded

    def _capture(self, at: Located) -> Located:
        message = f"capture '{at.path[-1]}' is not run here"
        hint = "load documents with 'flowctl ingest'"
        self.notes.append(Issue("N001", message, at.key_position, hint))
        return at

    # Collections

    def _collection(self, at: Located, url: str) -> CollectionDef | None:
        fields = self._fields(at)
        write_at = fields.get("schema") or fields["writeSchema"]
        write = self._schemas.load(write_at, url)
        read = write
        if "readSchema" in fields and write is not None:
            read = self._schemas.load(fields["readSchema"], url, write.schema)
        derive = self._derive(fields["derive"], url) if "derive" in fields else None
        if write is None or read is None or (derive is None and "derive" in fields):
            return None
        name = str(at.path[-1])
        return CollectionDef(name, at, fields.get("key"), write, read, write_at, fields.get("projections"), derive)

    def _derive(self, at: Located, url: str) -> DeriveDef | None:
        fields = self._fields(at)
        [(connector, config)] = self._fields(fields["using"]).items()
        tick, disabled = self._shards(fields.get("shards"))
        transforms = [self._transform(element, url) for element in self._elements(fields["transforms"])]
        connector_config = find_authoring(connector).configure(config, self._code_files(url))
        if connector_config is None:
            return None
        return DeriveDef(
            connector=connector,
            connector_config=connector_config,
            transforms=tuple(transform for transform in transforms if transform),
            shuffle_key_types=fields.get("shuffleKeyTypes"),
            tick=tick,
            disabled=disabled,
            redact_salt=fields.get("redactSalt"),
        )

    def _shards(self, at: Located | None, tick: int = _TICK) -> tuple[int, bool]:
        """Return the tick of a task in microseconds, and true if it is disabled."""
        shards = self._fields(at)
        if "flags" in shards:
            message = f"'flags' of the shards of '{shards['flags'].path[1]}' are ignored"
            self.notes.append(Issue("N002", message, shards["flags"].key_position))
        if "maxTxnDuration" in shards:
            tick = parse_duration(shards["maxTxnDuration"].value)
        return tick, "disable" in shards and shards["disable"].value

    def _code_files(self, url: str) -> CodeFiles:
        return CodeFiles(url, self._root, self.resources, self.report, self.missing)

    def _transform(self, at: Located, url: str) -> TransformDef | None:
        """Return the definition of a transform; None if it is disabled or invalid."""
        fields = self._fields(at)
        if "disable" in fields and fields["disable"].value:
            return None
        files = self._code_files(url)
        script = shuffle_script = None
        written = "lambda" in fields and isinstance(fields["lambda"].value, str)
        if written:
            script = files.script(fields["lambda"], "the lambda")
        shuffle = fields.get("shuffle")
        computed = shuffle is not None and shuffle.value != "any" and "lambda" in shuffle.value
        if shuffle is not None and computed:
            shuffle_script = files.script(shuffle["lambda"], "the shuffle lambda")
        if (written and script is None) or (computed and shuffle_script is None):
            return None
        delay = parse_duration(fields["readDelay"].value) if "readDelay" in fields else 0
        return TransformDef(
            name=fields["name"],
            source=self._source(fields["source"]),
            shuffle=shuffle,
            shuffle_script=shuffle_script,
            script=script,
            priority=int(fields["priority"].value) if "priority" in fields else 0,
            read_delay=delay // 1_000_000 * 1_000_000,
            backfill=int(fields["backfill"].value) if "backfill" in fields else 0,
            formerly=fields.get("formerly"),
            follows="onSourceReset" in fields and fields["onSourceReset"].value == "follow",
        )

    def _source(self, at: Located) -> SourceDef:
        if isinstance(at.value, str):
            return SourceDef(at)
        parts = self._fields(at)
        return SourceDef(parts["name"], parts.get("partitions"), parts.get("notBefore"), parts.get("notAfter"))

    # Materializations

    def _materialization(self, at: Located, url: str) -> MaterializationDef:
        fields = self._fields(at)
        if "source" in fields:
            message = f"the capture that '{at.path[-1]}' names adds no bindings"
            hint = "name the collections in 'bindings'"
            self.notes.append(Issue("N003", message, fields["source"].key_position, hint))
        loaded = [self._binding(element) for element in self._elements(fields["bindings"])]
        tick, disabled = self._shards(fields.get("shards"), _MATERIALIZED_TICK)
        bindings = tuple(binding for binding in loaded if binding)
        return MaterializationDef(str(at.path[-1]), at, url, fields["endpoint"], bindings, tick, disabled)

    def _binding(self, at: Located) -> BindingDef | None:
        """Return the definition of a binding; None if it is disabled."""
        fields = self._fields(at)
        if "disable" in fields and fields["disable"].value:
            return None
        return BindingDef(
            at=at,
            source=self._source(fields["source"]),
            resource=fields["resource"],
            fields=fields.get("fields"),
            priority=int(fields["priority"].value) if "priority" in fields else 0,
            backfill=int(fields["backfill"].value) if "backfill" in fields else 0,
            follows="onSourceReset" in fields and fields["onSourceReset"].value == "follow",
        )

    # Tests

    def _test(self, at: Located, url: str) -> TestDef:
        fields = self._fields(at) if isinstance(at.value, dict) else {"steps": at}
        loaded = [self._step(element, url) for element in self._elements(fields["steps"])]
        return TestDef(str(at.path[-1]), at, _text(fields.get("description")), tuple(step for step in loaded if step))

    def _step(self, at: Located, url: str) -> StepDef | AdvanceDef | None:
        [(kind, body)] = self._fields(at).items()
        if kind == "advance":
            return AdvanceDef(body)
        fields = self._fields(body)
        source = self._source(fields["collection"])
        if "partitions" in fields:
            source = SourceDef(source.name, fields["partitions"])
        documents = self._documents(fields["documents"], url)
        if documents is None:
            return None
        description = _text(fields.get("description"))
        return StepDef(kind, body, source, documents, fields["documents"], description, fields.get("at"))

    def _documents(self, at: Located, url: str) -> tuple[JSON, ...] | None:
        value = at.value
        if isinstance(value, str):
            target = resolve(url, value)
            try:
                if "#" in value:
                    raise OSError("only schemas have parts that '#' can name")
                value = self.resources.value(target)
            except OSError as exc:
                self.report.add("E003", f"cannot load documents {show(target)}: {reason_of(exc)}", at.position)
                return None
            except CatalogError as exc:
                self.report.take(exc.issues)
                return None
            if not isinstance(value, list) or not all(isinstance(document, dict) for document in value):
                self.report.add("E601", f"{show(target)} must hold an array of objects", at.position)
                return None
        return tuple(value)


def _text(at: Located | None) -> str:
    return "" if at is None else str(at.value)
