"""Load the schemas of collections from the catalog and from files, and derive read schemas.

A read schema may refer to `flow://write-schema`, to `flow://relaxed-write-schema` (the same without the keywords that
documents from outside often violate), and to `flow://inferred-schema`, a schema inferred from documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from urllib.parse import unquote, urljoin

from derive.catalog.definitions import LoadedSchema
from derive.catalog.language.yaml import Located
from derive.catalog.loading.resources import Resources
from derive.catalog.report import Report
from derive.document.pointer import parse_pointer
from derive.errors import CatalogError, SchemaError
from derive.position import Position
from derive.protocol.resource import is_remote, reason_of, show
from derive.protocol.specs import JSON
from derive.schema.bundle import bundle_documents
from derive.schema.dialect import NAMED, has_redactions
from derive.schema.redaction import RedactionError, redacted_schema
from derive.schema.validator import is_schema
from derive.suggest import suggest

WRITE, RELAXED, INFERRED = "flow://write-schema", "flow://relaxed-write-schema", "flow://inferred-schema"

_NOT_INFERRED: JSON = {
    "title": "Schema that is not inferred yet",
    "description": "No document passes until documents have been seen and a schema has been inferred from them.",
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
    """Positions that are computed at the first look-up, because invalid documents are rare."""

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
        return dict, (self._found,)  # a worker has no catalog


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
            self._report.add("E003", f"cannot load a schema it refers to: {reason_of(exc)}", at)
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
                self._report.add("E403", "a bare null is no type: write it in quotes", type_at, 'write "null"')
            elif not isinstance(type_at.value, str) or type_at.value not in (*_TYPES, "fractional"):
                guess = suggest(str(type_at.value), _TYPES)
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
    """Return the path of a file URL; other URLs unchanged."""
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
