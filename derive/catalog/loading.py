"""Loading: follows a catalog through its files, resources and schemas, and returns definitions.

A read schema may refer to `flow://write-schema`, to `flow://relaxed-write-schema` (the write schema without keywords
that documents of other systems often violate), and to `flow://inferred-schema`, a schema inferred from documents.

The catalog's JSON Schema checks the structure of files, and `build` checks their meaning. The loader loads every value
with a valid structure, even from a file with issues, so that one run reports all issues.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urljoin

from derive.catalog.definitions import (
    AdvanceDef,
    BindingDef,
    CatalogDef,
    CollectionDef,
    DeriveDef,
    LoadedSchema,
    MaterializationDef,
    Report,
    SourceDef,
    StepDef,
    TestDef,
    TransformDef,
)
from derive.catalog.language.structure import check_structure, settings_without_effect
from derive.catalog.language.yaml import Located, YamlFile, parse_json_lines, parse_yaml
from derive.catalog.language.yaml import Path as Place
from derive.document.clock import parse_duration
from derive.document.pointer import JSON, parse_pointer
from derive.errors import CatalogError, Issue, SchemaError, suggest, suggest_misspelt
from derive.plural import counted
from derive.position import Position, Script, is_remote, reason_of, resolve, show, too_large
from derive.protocol.authoring import LocatedValue
from derive.protocol.entry_points import find_authoring
from derive.schema.bundle import bundle_documents
from derive.schema.dialect import NAMED, has_redactions
from derive.schema.redaction import RedactionError, redacted_schema
from derive.schema.validator import is_schema

_ROOTS = ("flow.yaml", "flow.yml", "flow.json")


def project_root(source: Path) -> Path:
    """Return the project's folder of a catalog.

    The folder is the outermost parent in an unbroken chain of folders with root files.
    """
    folder = source.absolute().parent
    while folder.parent != folder and any(os.path.isfile(folder.parent / name) for name in _ROOTS):
        folder = folder.parent
    return Path(os.path.normpath(folder))


_SECONDS = 10.0

MOST_BYTES = 32 << 20
"""Size limit for a file of a catalog, bytes."""


class Resources:
    """Loads the resources of a catalog.

    A resource is identified by its URL: an absolute path, or an http(s) address.

    Args:
        seconds: time limit for an http(s) transfer.
        given: texts of resources, by URL; these resources are not loaded.

    Attributes:
        seconds: time limit for an http(s) transfer.
        asked: URLs of the resources that were loaded or could not be loaded.
        hashes: hash of each file's loaded content, by path.
    """

    def __init__(self, seconds: float = _SECONDS, given: Mapping[str, str] | None = None) -> None:
        self.seconds = seconds
        self._texts: dict[str, str | OSError] = {**(given or {})}
        self.asked: set[str] = set()
        self.hashes: dict[str, str] = {}
        self._parsed: dict[str, YamlFile | CatalogError] = {}

    def text(self, url: str) -> str:
        """Return the text of a resource.

        Raises:
            OSError: the resource cannot be loaded, or could not be loaded at the first request.
        """
        if url not in self._texts:
            try:
                self._texts[url] = self._load(url)
            except OSError as exc:
                self._texts[url] = exc
        content = self._texts[url]
        if isinstance(content, OSError):
            raise content
        return content

    def document(self, url: str) -> YamlFile:
        """Return a parsed resource of YAML, JSON or JSON Lines.

        Raises:
            OSError: the resource cannot be loaded.
            CatalogError: the resource cannot be parsed.
        """
        if url not in self._parsed:
            try:
                parse = parse_json_lines if url.endswith((".jsonl", ".ndjson")) else parse_yaml
                self._parsed[url] = parse(self.text(url), show(url))
            except CatalogError as exc:
                self._parsed[url] = exc
        document = self._parsed[url]
        if isinstance(document, CatalogError):
            raise document
        return document

    def value(self, url: str) -> JSON:
        """Return the content of a YAML or JSON resource as JSON."""
        return self.document(url).value

    def _load(self, url: str) -> str:
        try:
            return self.content(url).decode("utf-8-sig")
        except UnicodeDecodeError as exc:
            raise OSError(f"it is not UTF-8 text (byte {exc.start})") from exc

    def content(self, url: str) -> bytes:
        """Return the bytes of a resource, without caching them.

        Raises:
            OSError: the resource cannot be loaded.
        """
        self.asked.add(url)
        if is_remote(url):
            return _fetch(url, self.seconds, MOST_BYTES)
        if url.startswith("file:"):  # file URLs of a local catalog are already converted to paths
            raise OSError("a catalog at an http(s) address may name only files at http(s) addresses")
        try:
            with Path(url).open("rb") as file:
                content = file.read(MOST_BYTES + 1)
        except ValueError as exc:
            raise OSError(str(exc)) from exc
        if len(content) > MOST_BYTES:
            raise too_large(MOST_BYTES)
        self.hashes[url] = hashlib.sha256(content).hexdigest()
        return content


_BLOCK_BYTES = 1 << 16


def _fetch(url: str, seconds: float, most_bytes: int) -> bytes:
    """Return the content of an http(s) address.

    Args:
        url: the address.
        seconds: time limit for the whole transfer, even from a slow server.
        most_bytes: limit for the size of the content.

    Raises:
        OSError: the content cannot be loaded, or exceeds the limit.
    """
    # An HTTP client is slow to import and rarely needed.
    from http.client import HTTPException
    from urllib.error import HTTPError

    try:
        return _read_remote(url, seconds, most_bytes)
    except HTTPException as exc:
        raise OSError(f"invalid answer: {type(exc).__name__}") from exc
    except HTTPError as exc:
        exc.close()
        raise OSError(f"HTTP {exc.code} {exc.reason}") from exc
    except ValueError as exc:
        raise OSError(str(exc)) from exc


def _read_remote(url: str, seconds: float, most_bytes: int) -> bytes:
    from urllib.request import urlopen

    end = time.monotonic() + seconds
    blocks: list[bytes] = []
    size = 0
    with urlopen(url, timeout=seconds) as response:  # http(s) only: the caller has checked the scheme
        while block := response.read1(_BLOCK_BYTES):
            blocks.append(block)
            size += len(block)
            if size > most_bytes:
                raise too_large(most_bytes)
            if time.monotonic() > end:
                raise TimeoutError("timed out")
    content = b"".join(blocks)
    expected = response.headers.get("Content-Length")
    if expected is not None and expected.isdigit() and len(content) < int(expected):
        raise OSError(f"the answer ends after {len(content)} of {counted(int(expected), 'byte')}")
    return content


WRITE, RELAXED, INFERRED = "flow://write-schema", "flow://relaxed-write-schema", "flow://inferred-schema"

_NOT_INFERRED: JSON = {
    "title": "Schema that is not inferred yet",
    "description": "No document is valid until a schema has been inferred from documents.",
    "type": "object",
    "required": ["_meta"],
    "properties": {
        "_meta": {
            "type": "object",
            "required": ["inferredSchemaIsNotAvailable"],
            "properties": {"inferredSchemaIsNotAvailable": {"const": True}},
        }
    },
}
_RELAXED = ("type", "required", "format")
_VALUES = ("enum", "const", "default", "examples", "required")
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_LIKE_TYPES = {
    **dict.fromkeys(("int", "bigint", "long"), "integer"),
    **dict.fromkeys(("decimal", "double", "float", "numeric"), "number"),
    **dict.fromkeys(("str", "text", "varchar"), "string"),
    **dict.fromkeys(("dict", "map"), "object"),
    "bool": "boolean",
    "list": "array",
}
"""Types of JSON by the names of similar types elsewhere."""
_KNOWN_ELSEWHERE = "https://json-schema.org/draft/"


def relax(schema: JSON) -> JSON:
    """Return a schema without `type`, `required` and `format`, also in its subschemas.

    >>> relax({"type": "object", "properties": {"a": {"type": "string", "minLength": 1}}})
    {'properties': {'a': {'minLength': 1}}}
    """
    if not isinstance(schema, dict):
        return schema
    relaxed: dict[str, JSON] = {}
    for name, child in schema.items():
        if name in ("$defs", "definitions", "properties") and isinstance(child, dict):
            relaxed[name] = {key: relax(subschema) for key, subschema in child.items()}
        elif name in ("allOf", "items", "prefixItems") and isinstance(child, list):
            relaxed[name] = [relax(subschema) for subschema in child]
        elif name in ("items", "additionalItems", "additionalProperties"):
            relaxed[name] = relax(child)
        elif name not in _RELAXED:
            relaxed[name] = child
    return relaxed


class _Positions(Mapping[str, Position]):
    """Positions, computed at the first look-up, because invalid documents are rare."""

    def __init__(self, find: Callable[[], dict[str, Position]]) -> None:
        self._find = find

    @cached_property
    def _found(self) -> dict[str, Position]:
        return self._find()

    def __getitem__(self, pointer: str) -> Position:
        return self._found[pointer]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __reduce__(self) -> tuple[type, tuple[dict[str, Position]]]:
        return dict, (self._found,)  # for pickle: a worker has no catalog


class SchemaLoader:
    """Loads schemas, each with its references embedded in one document.

    Args:
        resources: loader of the files.
        report: report for issues.
    """

    def __init__(self, resources: Resources, report: Report) -> None:
        self._resources = resources
        self._report = report
        self._good: dict[str, bool] = {}

    def load(self, at: Located, url: str, write: JSON = None) -> LoadedSchema | None:
        """Return the schema at `at`; None, and an issue, if it cannot be loaded.

        Args:
            at: an object, or the name of a file.
            url: URL of the file with the schema, the base of relative references.
            write: the write schema, for a read schema; None otherwise.
        """
        flow: dict[str, JSON] = {}
        if write is not None:
            flow = {WRITE: write, RELAXED: relax(write), INFERRED: _NOT_INFERRED}
        if not (self._follow(at, url, at.value, flow) if isinstance(at.value, str) else self._check(at, url, flow)):
            return None
        schema = {"$ref": at.value} if isinstance(at.value, str) else at.value
        try:
            remote = [name for name in (url,) if is_remote(name)]

            def value(name: str) -> JSON:
                if name in flow:
                    return flow[name]
                remote.extend([name] if is_remote(name) else [])
                return self._resources.value(name if remote else _path(name))

            loaded = bundle_documents(schema, url, value)
            positions = _Positions(lambda: loaded.positions(lambda *origin: self._locate(at, url, flow, *origin)))
            if not has_redactions(loaded.schema) or not is_schema(loaded.schema):
                return LoadedSchema(loaded.schema, positions)
            try:
                return LoadedSchema(redacted_schema(loaded.schema), positions, loaded.schema)
            except RedactionError as exc:
                self._report.add("E407", exc.message, positions.get(exc.pointer, at.position), exc.hint)
        except OSError as exc:
            self._report.add("E003", f"cannot load a schema that this schema refers to: {reason_of(exc)}", at)
        except SchemaError as exc:
            self._report.add("E403", exc.message, at, exc.hint)
        except CatalogError as exc:
            self._report.take(exc.issues)
        return None

    def _locate(self, at: Located, base: str, flow: Mapping[str, JSON], url: str, pointer: str) -> Position | None:
        """Return the position of a location of a schema document; None if unknown."""
        if url in flow:
            return None
        inline = url == base and not isinstance(at.value, str)
        file = at.file if inline else self._resources.document(_path(url))
        located = at if inline else Located(file, (), file.value)
        for token in parse_pointer(pointer):
            try:
                located = located[int(token) if isinstance(located.value, list) else token]
            except (KeyError, IndexError, TypeError, ValueError):
                return None
        return located.key_position

    def _check(self, at: Located, url: str, flow: Mapping[str, JSON]) -> bool:
        """Return true if all files that a schema refers to can be loaded, and all its types are valid."""
        good = True
        parts = list(_subschemas(at))
        named = any("$id" in part.value for part in parts)
        for part in parts:
            if "type" in part.value:
                good = self._are_types(part["type"]) and good
            reference = part.value.get("$ref")
            if isinstance(reference, str) and reference[:1] != "#" and not named:
                good = self._follow(part["$ref"], url, reference, flow) and good
        return good

    def _are_types(self, at: Located) -> bool:
        """Return true if the value of `type` is a type of JSON Schema or an array of such types."""
        before = self._report.count
        for type_at in at.elements() if isinstance(at.value, list) else (at,):
            if type_at.value is None:
                self._report.add(
                    "E403", "null without quotes is not a type, but the value null", type_at, 'write "null"'
                )
            elif not isinstance(type_at.value, str) or type_at.value not in (*_TYPES, "fractional"):
                guess = _LIKE_TYPES.get(str(type_at.value).lower()) or suggest(str(type_at.value), _TYPES)
                hint = f"did you mean '{guess}'?" if guess else f"types: {', '.join(_TYPES)}"
                self._report.add("E403", f"JSON has no type {type_at.value!r}", type_at, hint)
        return self._report.count == before

    def _follow(self, at: Located, base: str, reference: str, flow: Mapping[str, JSON]) -> bool:
        url = urljoin(base, reference.partition("#")[0])
        url = url if is_remote(base) else _path(url)
        if url.startswith("flow://"):
            return self._is_flow(at, url, flow)
        if url in self._good or url.startswith(_KNOWN_ELSEWHERE):
            return self._good.get(url, True)
        self._good[url] = True  # before the check, so that cycles end
        try:
            file = self._resources.document(url)
        except OSError as exc:
            self._report.add("E003", f"cannot load schema {show(url)}: {reason_of(exc)}", at)
            self._good[url] = False
        except CatalogError as exc:
            self._report.take(exc.issues)
            self._good[url] = False
        else:
            self._good[url] = self._check(Located(file, (), file.value), url, flow)
        return self._good[url]

    def _is_flow(self, at: Located, url: str, flow: Mapping[str, JSON]) -> bool:
        if url in flow:
            return True
        if url in (WRITE, RELAXED, INFERRED):
            self._report.add("E003", f"only a 'readSchema' may refer to {url}", at)
        else:
            guess = suggest(url, (WRITE, RELAXED, INFERRED))
            self._report.add("E003", f"there is no schema {url}", at, f"did you mean '{guess}'?" if guess else None)
        return False


def _path(url: str) -> str:
    """Return the path of a file URL; return other URLs unchanged."""
    return unquote(url.removeprefix("file://")) if url.startswith("file://") else url


def _subschemas(at: Located) -> Iterator[Located]:
    """Yield a schema and all its subschemas that are objects."""
    if isinstance(at.value, list):
        for element in at.elements():
            yield from _subschemas(element)
        return
    if not isinstance(at.value, dict):
        return
    yield at
    for name, value in at.value.items():
        if not isinstance(value, (dict, list)) or name in _VALUES or name[:2] in ("x-", "X-"):
            continue
        if name in NAMED and isinstance(value, dict):
            for _, child in at[name].items():
                yield from _subschemas(child)
        else:
            yield from _subschemas(at[name])


_NO_SPACE = "a string without spaces is the name of a file"
_GENERATE = "create it: flowctl generate"


@dataclass(frozen=True, slots=True)
class CodeFiles:
    """Loads the code that a catalog file names, for connectors (`CatalogFiles`).

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
        """Return code: the string itself, or, if it has no white space, the content of the file that it names."""
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

_NO_CATALOG = "create a catalog: flowctl init; or name an existing one: --source FILE"

_FILE = "flow.yaml"
"""Usual name of the root file of a catalog."""


def _instead_of(source: Path, error: OSError) -> str | None:
    """Return the hint for a root file that cannot be loaded: the file that is probably meant, or a way to one."""
    if isinstance(error, IsADirectoryError):
        inner = source / _FILE
        return f"did you mean {inner}?" if inner.is_file() else "name a file of the folder: --source FILE"
    if not isinstance(error, FileNotFoundError):
        return None
    try:
        beside = [file.name for file in source.parent.iterdir() if file.is_file()]
    except OSError:  # there is no such folder, or others may not read it
        beside = []
    guess = suggest_misspelt(source.name, beside)
    return f"did you mean {source.with_name(guess)}?" if guess else _NO_CATALOG


_TICK, _MATERIALIZED_TICK = 1_000_000, 10_000


class Loader:
    """Loads a catalog.

    Attributes:
        report: report for issues.
        notes: remarks, which are not errors.
        broken: names whose definitions cannot be loaded.
        incomplete: true if a file could not be loaded, so that its definitions are unknown.
        missing: URLs of missing code files; each file also has an issue.
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
                hint = _instead_of(source, exc) if len(seen) == 1 else None
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
        message = f"capture '{at.path[-1]}' is not run"
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
            quarantines="onViolation" in fields and fields["onViolation"].value == "quarantine",
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
        return TestDef(str(at.path[-1]), at, tuple(step for step in loaded if step))

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
        return StepDef(kind, body, source, documents, fields["documents"], fields.get("at"))

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
