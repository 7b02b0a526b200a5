"""Bundle a schema with the files that it refers to into one self-contained schema.

Validation, inference and reduction then know one kind of reference, a JSON pointer into the same document. Names of
schemas (`$id`, `$anchor`) are resolved here and removed, except for anchors that name a type, which generated code
uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin

from derive.document.pointer import JSON, escape, parse_pointer
from derive.errors import SchemaError
from derive.position import Position
from derive.schema.dialect import KEYWORDS, NAMED, VALUES, subschemas

Load = Callable[[str], JSON]
"""Function from an absolute URL or path to a schema document."""

Locate = Callable[[str, str], Position | None]
"""Function from a document's URL and a JSON pointer to the position of the location; None if unknown."""

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_TYPE_NAME = re.compile(r"[A-Z]\w+")
"""Pattern of an `$anchor` that names a type."""

_NAMES = ("$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$schema")

_META_SCHEMAS = "https://json-schema.org/draft/"
"""URL prefix of meta-schemas, which the validator has built in."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A self-contained schema.

    Attributes:
        schema: the schema, in the spelling of draft 2020-12.
        documents: URL and content of each embedded document, by JSON pointer into the schema.
    """

    schema: JSON
    documents: Mapping[str, tuple[str, JSON]]

    def origin(self, pointer: str) -> tuple[str, str]:
        """Return the origin of a location in the schema: the URL of a document, and the JSON pointer inside it."""
        prefix = max((document for document in self.documents if f"{pointer}/".startswith(f"{document}/")), key=len)
        url, content = self.documents[prefix]
        tokens = parse_pointer(pointer[len(prefix) :])
        return url, "".join(f"/{escape(token)}" for token in _respell(content, tokens, _FORMER))

    def positions(self, locate: Locate) -> dict[str, Position]:
        """Return the position of each schema and keyword by JSON pointer, in the format of `Validator.violation`.

        Args:
            locate: returns the position of a location in a document.
        """
        positions = {}
        for pointer, subschema in subschemas(self.schema):
            for location in (pointer, *(f"{pointer}/{escape(keyword)}" for keyword in subschema)):
                position = locate(*self.origin(location))
                if position is not None:
                    positions[location] = position
        return positions


def bundle(schema: JSON, base: str, load: Load) -> JSON:
    """Return the schema of `bundle_documents`."""
    return bundle_documents(schema, base, load).schema


def bundle_documents(schema: JSON, base: str, load: Load) -> Bundle:
    """Return a self-contained copy of a schema.

    Every document that the schema refers to is embedded under `$defs`, and every `$ref` is rewritten to point there.

    Args:
        schema: the schema, or a reference to one (`{"$ref": …}`).
        base: URL of the schema, the base of relative references.
        load: loads referenced documents.

    Raises:
        SchemaError: a reference is not a URL, or the target of a `$dynamicRef` depends on its dynamic scope.
    """
    # Replace a document that only refers to another document by that document.
    while isinstance(schema, dict) and set(schema) == {"$ref"} and "#" not in schema["$ref"]:
        base = _join(base, schema["$ref"])
        schema = load(base)
    return _Bundling(load).run(schema, base)


_NOW, _FORMER = (
    {"items": "prefixItems", "additionalItems": "items"},
    {"prefixItems": "items", "items": "additionalItems"},
)
"""Keywords for tuples: `items` and `additionalItems` of draft 2019-09, and `prefixItems` and `items` of 2020-12."""


def _respell(document: JSON, tokens: tuple[str, ...], spelling: Mapping[str, str]) -> list[str]:
    """Return the tokens of a pointer, respelt where the document uses the tuple keywords of draft 2019-09."""
    respelt = []
    value = document
    for token in tokens:
        is_tuple = isinstance(value, dict) and isinstance(value.get("items"), list)
        other = spelling.get(token, token) if is_tuple else token
        respelt.append(other)
        step = other if spelling is _FORMER else token
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            value = None
    return respelt


class _Bundling:
    def __init__(self, load: Load) -> None:
        self._load = load
        self._documents: dict[str, tuple[str, JSON]] = {}
        self._resources: dict[str, tuple[str, str]] = {}  # pointer of the document and pointer inside it, by URL
        self._anchors: dict[tuple[str, str], str] = {}
        self._dynamic: dict[str, set[str]] = {}
        self._followed: set[str] = set()
        self._type_names: set[str] = set()

    def run(self, schema: JSON, base: str) -> Bundle:
        self._add(schema, base, "")
        root = self._rewrite(schema, base, base)
        embedded: dict[str, JSON] = {}
        pending = 1
        while pending < len(self._documents):  # rewriting adds documents
            pointer, (url, content) = list(self._documents.items())[pending]
            embedded[pointer.removeprefix("/$defs/")] = self._rewrite(content, url, url)
            pending += 1
        for name in self._followed:
            if len(self._dynamic.get(name, ())) > 1:
                raise SchemaError(
                    f"a dynamic reference to '{name}' leads to one of {len(self._dynamic[name])} schemas, depending on"
                    " the path it is reached by, which is not supported",
                    hint="refer to the intended schema by $ref",
                )
        if embedded:
            root["$defs"] = {**root.get("$defs", {}), **embedded}
        return Bundle(root, self._documents)

    def _add(self, content: JSON, url: str, prefix: str) -> None:
        """Add a document and every named schema in it."""
        self._documents[prefix] = (url, content)
        self._resources[url] = (prefix, "")
        bases = [("", url)]
        for pointer, subschema in subschemas(content):
            while not f"{pointer}/".startswith(f"{bases[-1][0]}/"):
                bases.pop()
            if isinstance(subschema.get("$id"), str):
                bases.append((pointer, _join(bases[-1][1], subschema["$id"])))
                self._resources.setdefault(bases[-1][1], (prefix, pointer))
            base = bases[-1][1]
            location = self._pointer(prefix, pointer)
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(subschema.get(keyword), str):
                    self._anchors[base, subschema[keyword]] = location
            dynamic = "#" if subschema.get("$recursiveAnchor") is True else subschema.get("$dynamicAnchor")
            if isinstance(dynamic, str):
                self._dynamic.setdefault(dynamic, set()).add(location)

    def _pointer(self, prefix: str, pointer: str) -> str:
        tokens = _respell(self._documents[prefix][1], parse_pointer(pointer), _NOW)
        return prefix + "".join(f"/{escape(token)}" for token in tokens)

    def _rewrite(self, value: JSON, base: str, url: str, *, named: bool = True) -> JSON:
        """Return a copy of a schema (or array of schemas) with references as JSON pointers.

        Args:
            value: the schema.
            base: base of its references.
            url: URL of its document.
            named: true if `$id` is significant; below an unknown keyword, `$id` has no meaning.
        """
        if isinstance(value, list):
            return [self._rewrite(child, base, url, named=named) for child in value]
        if not isinstance(value, dict):
            return value
        if named and isinstance(value.get("$id"), str):
            base = _join(base, value["$id"])
        is_tuple = isinstance(value.get("items"), list)
        copied: dict[str, Any] = {}
        for name, child in value.items():
            if name in _REFERENCES and isinstance(child, str):
                self._refer(copied, name, child, self._target(child, base, url))
            elif name in _NAMES:
                if name == "$anchor" and named and self._is_type_name(child):
                    copied[name] = child
            elif name in VALUES:
                copied[name] = child
            elif name in NAMED and isinstance(child, dict):  # property names are not keywords
                copied[name] = {
                    key: self._rewrite(subschema, base, url, named=named) for key, subschema in child.items()
                }
            else:
                spelt = _NOW[name] if is_tuple and name in _NOW else name
                copied[spelt] = self._rewrite(child, base, url, named=named and name in KEYWORDS)
        return copied

    def _is_type_name(self, anchor: JSON) -> bool:
        """Return true if an anchor is a type name that the bundle does not have yet."""
        if not isinstance(anchor, str) or not _TYPE_NAME.fullmatch(anchor) or anchor in self._type_names:
            return False
        self._type_names.add(anchor)
        return True

    def _refer(self, schema: dict[str, Any], keyword: str, reference: str, target: str) -> None:
        """Add a reference to a schema; a dynamic reference with a single target becomes a plain reference."""
        if keyword != "$ref":
            name = "#" if keyword == "$recursiveRef" else reference.partition("#")[2]
            if target.removeprefix("#") in self._dynamic.get(name, ()):
                self._followed.add(name)
        if "$ref" in schema:
            schema["allOf"] = [*schema.get("allOf", ()), {"$ref": target}]
        else:
            schema["$ref"] = target

    def _target(self, reference: str, base: str, url: str) -> str:
        """Return the reference inside the bundle that replaces a reference."""
        target, _, fragment = reference.partition("#")
        resource = _join(base, target) if target else base
        if resource.startswith(_META_SCHEMAS) and resource not in self._resources:
            return f"{resource}#{fragment}" if fragment else resource
        if resource not in self._resources:
            self._fetch(resource, _join(url, target))
        prefix, inside = self._resources[resource]
        if fragment and not fragment.startswith("/"):
            # Keep an unknown anchor, so that the validator reports it.
            anchor = self._anchors.get((resource, unquote(fragment)))
            return f"#{fragment}" if anchor is None else _fragment(anchor)
        return _fragment(self._pointer(prefix, inside + unquote(fragment)))

    def _fetch(self, url: str, beside: str) -> None:
        """Embed a document by its URL. If an `$id` makes the URL fictitious, use the path beside the file."""
        if beside in self._resources:
            self._resources[url] = self._resources[beside]
            return
        prefix = f"/$defs/{self._free_name(url)}"
        try:
            content = self._load(url)
        except OSError:
            if beside == url:
                raise
            content = self._load(beside)
            self._resources[url] = (prefix, "")
            url = beside
        self._add(content, url, prefix)

    def _free_name(self, url: str) -> str:
        # Only characters that neither pointers nor URLs escape.
        stem = re.sub(r"[^\w.-]", "_", url.rstrip("/").rsplit("/", 1)[-1], flags=re.ASCII)
        root = self._documents[""][1]
        taken = {document.removeprefix("/$defs/") for document in self._documents} | set(root.get("$defs", ()))
        name, number = stem, 2
        while name in taken:
            name, number = f"{stem}-{number}", number + 1
        return name


def _join(base: str, reference: str) -> str:
    try:
        return urldefrag(urljoin(base, reference))[0]
    except ValueError as exc:
        raise SchemaError(f"'{reference}' is not a URL: {exc}") from exc


def _fragment(pointer: str) -> str:
    return "#" + quote(pointer, safe="/~!$&'()*+,;=:@")
